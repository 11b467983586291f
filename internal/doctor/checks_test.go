package doctor

import (
	"errors"
	"testing"

	"example.com/shop/internal/app"
)

func TestAssessDurability(t *testing.T) {
	for _, test := range []struct{ fsync, fullPageWrites, want string }{
		{"on", "on", ""},
		{"off", "on", "fsync is off: if the server's machine crashes, committed rows can be lost or corrupt"},
		{"off", "off", "fsync is off: if the server's machine crashes, committed rows can be lost or corrupt"},
		{"on", "off", "full_page_writes is off: if the server's machine crashes, committed rows can be lost or " +
			"corrupt, unless its file system writes each page whole or not at all"},
	} {
		err := assessDurability(test.fsync, test.fullPageWrites)
		if warning, _ := errors.AsType[app.Warning](err); string(warning) != test.want || err != nil && test.want == "" {
			t.Errorf("with fsync %s and full_page_writes %s the finding is %v, want the warning %q",
				test.fsync, test.fullPageWrites, err, test.want)
		}
	}
}
