package order

import (
	"net/http"

	"example.com/shop/internal/rest"
)

// The kinds of error that package rest does not declare.
var (
	UnknownProduct   = rest.Kind{Code: "unknown-product", Status: http.StatusUnprocessableEntity, Title: "Unknown product"}
	MixedCurrencies  = rest.Kind{Code: "mixed-currencies", Status: http.StatusUnprocessableEntity, Title: "Mixed currencies"}
	OutOfStock       = rest.Kind{Code: "out-of-stock", Status: http.StatusConflict, Title: "Out of stock"}
	TooManyOpen      = rest.Kind{Code: "too-many-open-orders", Status: http.StatusConflict, Title: "Too many open orders"}
	DeadlinePassed   = rest.Kind{Code: "deadline-passed", Status: http.StatusConflict, Title: "Payment deadline passed"}
	AlreadyPaid      = rest.Kind{Code: "order-paid", Status: http.StatusConflict, Title: "Order already paid"}
	CheckoutOpen     = rest.Kind{Code: "checkout-open", Status: http.StatusConflict, Title: "Checkout open"}
	Cancelling       = rest.Kind{Code: "order-cancelling", Status: http.StatusConflict, Title: "Order is being cancelled"}
	NotExtendable    = rest.Kind{Code: "not-extendable", Status: http.StatusConflict, Title: "Deadline cannot be extended"}
	AlreadyCancelled = rest.Kind{Code: "order-cancelled", Status: http.StatusConflict, Title: "Order already cancelled"}
)
