package linux

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHostID(t *testing.T) {
	const machine, firmware, dmi = "3d1219c7c4c5404aaa1f6d2a48adfda4", "4c4c4544-0042-3510-8052-b4c04f4d3132", "sys/class/dmi/id/product_uuid"
	read := func(files map[string]string) string {
		t.Helper()
		root := t.TempDir()
		for name, text := range files {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		id, err := Root(root).HostID()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	own := read(map[string]string{"etc/machine-id": machine, dmi: firmware})
	if own == "" || own == machine || own != read(map[string]string{"etc/machine-id": machine}) {
		t.Errorf("id %q of machine-id %s", own, machine)
	}
	board := read(map[string]string{"etc/machine-id": "uninitialized", dmi: firmware})
	if board == "" || board == own || board != read(map[string]string{dmi: firmware}) {
		t.Errorf("id %q of firmware's UUID, %q of the machine-id", board, own)
	}
	for _, none := range []map[string]string{{}, {"etc/machine-id": ""}, {dmi: "00000000-0000-0000-0000-000000000000"},
		{dmi: "Not Settable"}} {
		if id := read(none); id != "" {
			t.Errorf("%v gives the id %q", none, id)
		}
	}
}
