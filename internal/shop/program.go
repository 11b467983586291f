package shop

import (
	"os"
	"runtime/debug"

	"example.com/shop/internal/app"
)

// gcPercent makes Go's garbage collector run less often than by default, unless the variable GOGC is set. The service
// has little memory in use and makes much garbage, so the collector would run many times a second. In a load test
// it took a sixth of the processor time. With this setting, the process needs some 20 MB more.
const gcPercent = 400

// SetGC sets gcPercent.
func SetGC() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// Program describes the program. The version is the one that the build has set or, if it is empty, the module's.
func Program(version string) app.Program {
	if version == "" {
		version = app.ModuleVersion()
	}
	return app.Program{
		Name:        "shop",
		Description: "Take orders, cancel those that are not paid by their deadline, and release their stock.",
		Version:     version,
	}
}
