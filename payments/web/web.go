// Package web has what payments add to the pages.
package web

import (
	"embed"

	"example.com/shop/web"
)

//go:embed assets
var assets embed.FS

// Pages are the scripts of payments, with their style sheet.
var Pages = []web.Extension{{Assets: assets, Shop: []string{"payments.js"}, Ops: []string{"opspayments.js"}}}
