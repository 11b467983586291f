package order

import (
	"net/http"

	"example.com/shop/internal/rest"
)

// The classes of error that package rest does not declare.
var (
	UnknownProduct   = rest.Class{Code: "unknown-product", Status: http.StatusUnprocessableEntity, Title: "Unknown product"}
	MixedCurrencies  = rest.Class{Code: "mixed-currencies", Status: http.StatusUnprocessableEntity, Title: "Mixed currencies"}
	OutOfStock       = rest.Class{Code: "out-of-stock", Status: http.StatusConflict, Title: "Out of stock"}
	TooManyOpen      = rest.Class{Code: "too-many-open-orders", Status: http.StatusConflict, Title: "Too many open orders"}
	DeadlinePassed   = rest.Class{Code: "deadline-passed", Status: http.StatusConflict, Title: "Payment deadline passed"}
	AlreadyPaid      = rest.Class{Code: "order-paid", Status: http.StatusConflict, Title: "Order already paid"}
	CheckoutOpen     = rest.Class{Code: "checkout-open", Status: http.StatusConflict, Title: "Checkout open"}
	Cancelling       = rest.Class{Code: "order-cancelling", Status: http.StatusConflict, Title: "Order is being cancelled"}
	NotExtendable    = rest.Class{Code: "not-extendable", Status: http.StatusConflict, Title: "Deadline cannot be extended"}
	AlreadyCancelled = rest.Class{Code: "order-cancelled", Status: http.StatusConflict, Title: "Order already cancelled"}
)
