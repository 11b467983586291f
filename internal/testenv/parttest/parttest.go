// Package parttest helps to test a part of the service without a queue and without a process:
//   - [OpenDB] connects to a database as the service does;
//   - [Published] and [Notified] record what the part publishes, and which customers it notifies;
//   - [Handle] passes tasks to the part's handlers;
//   - [NewRouter] has the middleware for the part's routes, and a [Contract] checks their answers.
package parttest
