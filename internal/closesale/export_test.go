package closesale

// CloseSaleSQL is the statement whose plans a test checks.
var CloseSaleSQL = closeSaleSQL
