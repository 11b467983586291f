package payment

// WantedEvents are the types of event that the documentation must name.
var WantedEvents = wantedEvents
