package fleet

import "testing"

func TestMigrationOptions(t *testing.T) {
	for _, c := range []struct {
		options MigrationOptions
		valid   bool
		text    string
	}{
		{MigrationOptions{}, true, ""},
		{MigrationOptions{MaxDowntime: 50}, true, "stops for at most 50ms"},
		{MigrationOptions{MaxDowntime: longestDowntime, CopyStorage: true}, true,
			"stops for at most 33m20s, copies its disks"},
		{MigrationOptions{PostCopy: true}, true, "post-copy"},
		{MigrationOptions{CopyStorage: true}, true, "copies its disks"},
		{MigrationOptions{MaxDowntime: -1}, false, "stops for at most -1ms"},
		{MigrationOptions{MaxDowntime: longestDowntime + 1}, false, "stops for at most 33m20.001s"},
		{MigrationOptions{MaxDowntime: 1, PostCopy: true}, false, "stops for at most 1ms, post-copy"},
		{MigrationOptions{PostCopy: true, CopyStorage: true}, false, "post-copy, copies its disks"},
	} {
		if err := c.options.Validate(); (err == nil) != c.valid {
			t.Errorf("%+v: %v", c.options, err)
		}
		if got := c.options.String(); got != c.text {
			t.Errorf("%+v: %q, not %q", c.options, got, c.text)
		}
	}
}
