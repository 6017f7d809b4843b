package internal_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/numavisor/numavisor/"

// rooms is the floor plan: each room and the rooms it may look into.
// Words know only words, decisions know words and the price list, drivers
// know words and not each other, observe and apply declare the interfaces
// that drivers satisfy; host/local joins them, and only cmd knows everybody.
// Tests may look further.
var rooms = map[string][]string{
	"internal/text":       {},
	"internal/strictyaml": {"internal/text"},
	"internal/topology":   {"internal/text", "internal/strictyaml"},
	"internal/guest":      {"internal/strictyaml", "internal/topology", "internal/text"},
	"internal/inventory":  {"internal/topology", "internal/guest", "internal/text"},
	"internal/policy":     {"internal/strictyaml", "internal/topology", "internal/guest", "internal/alarm"},
	"internal/plan":       {"internal/topology", "internal/guest"},
	"internal/alarm":      {"internal/topology", "internal/inventory"},
	"internal/journal":    {"internal/topology", "internal/plan"},
	"internal/history":    {"internal/topology", "internal/inventory"},
	"internal/status": {"internal/topology", "internal/inventory", "internal/policy", "internal/plan",
		"internal/alarm"},

	"internal/status/statustest": {"WORDS"}, // for tests

	"internal/topology/topologytest": {"WORDS", "internal/host/archive"}, // for tests

	"internal/fleet": {"internal/topology", "internal/guest", "internal/inventory", "internal/alarm", "internal/strictyaml"},

	"internal/api/host":  {"WORDS"},
	"internal/api/agent": {"WORDS"},
	"internal/api/fleet": {"WORDS"},
	// documents made from inventories and decisions, for the server and for one host
	"internal/api/fleet/show": {"WORDS", "internal/api/fleet", "internal/decide/adopt", "internal/decide/capacity",
		"internal/decide/place"},
	// Only the standard library: it is linked into the agent in guests.
	"internal/api/guest":  {},
	"internal/guestagent": {"internal/api/guest"},

	"internal/server":        {"WORDS", "internal/api", "internal/decide", "internal/server"},
	"internal/server/auth":   {},
	"internal/server/leader": {"internal/server/store"},

	"internal/server/store":           {},
	"internal/server/store/memory":    {"internal/server/store"},
	"internal/server/store/etcd":      {"internal/server/store", "internal/topology"},
	"internal/server/telemetry":       {"WORDS"},
	"internal/server/store/storetest": {"internal/server/store"}, // for tests

	"internal/decide/transcripttest": {"WORDS"}, // for tests

	"internal/decide/cost":     {"WORDS"},
	"internal/decide/capacity": {"WORDS"},
	"internal/decide/place": {"WORDS", "internal/decide/cost", "internal/decide/capacity",
		"internal/decide/handoff"},
	"internal/decide/schedule": {"WORDS", "internal/decide/capacity", "internal/decide/place"},
	"internal/decide/share":    {"WORDS", "internal/decide/capacity"},
	"internal/decide/bind":     {"WORDS"},
	"internal/decide/balance": {"WORDS", "internal/decide/cost", "internal/decide/capacity", "internal/decide/place",
		"internal/decide/adopt", "internal/decide/check"},
	"internal/decide/migrate": {"WORDS", "internal/decide/cost", "internal/decide/adopt", "internal/decide/balance",
		"internal/decide/place", "internal/decide/schedule"},
	"internal/decide/room": {"WORDS", "internal/decide/capacity", "internal/decide/place",
		"internal/decide/adopt", "internal/decide/check", "internal/decide/balance"},
	"internal/decide/reconcile":   {"WORDS", "internal/decide/drift"},
	"internal/decide/alarm":       {"WORDS"},
	"internal/decide/adopt":       {"WORDS"},
	"internal/decide/check":       {"WORDS", "internal/decide/cost", "internal/decide/handoff"},
	"internal/decide/drift":       {"WORDS"},
	"internal/decide/libxl":       {"WORDS"},
	"internal/decide/pools":       {"WORDS"},
	"internal/decide/throttle":    {"WORDS"},
	"internal/decide/handoff":     {"WORDS"},
	"internal/decide/scale":       {"WORDS", "internal/decide/handoff"},
	"internal/decide/order":       {"WORDS", "internal/decide/cost"},
	"internal/decide/competitors": {"WORDS"},
	"internal/decide/diagnose": {"WORDS", "internal/decide/cost", "internal/decide/drift", "internal/decide/check",
		"internal/decide/share"},
	"internal/decide/control": {"WORDS", "internal/decide/alarm", "internal/decide/balance",
		"internal/decide/competitors", "internal/decide/drift", "internal/decide/order", "internal/decide/share",
		"internal/decide/throttle"},

	"internal/host/linux":   {"WORDS"},
	"internal/host/libvirt": {"WORDS"},
	"internal/host/xen":     {"WORDS"},
	"internal/host/hwloc":   {"WORDS"},
	"internal/host/fake":    {"WORDS"},
	"internal/host/lock":    {},
	"internal/host/archive": {},
	"internal/host/claim":   {"WORDS", "internal/host/lock"},
	"internal/host/record":  {"WORDS", "internal/host/lock"},
	"internal/host/observe": {"WORDS"},
	"internal/host/apply":   {"WORDS"},
	"internal/host/watch":   {"WORDS", "internal/host/linux"},
	"internal/host/daemon": {"WORDS", "internal/api/host", "internal/decide/control", "internal/host/operate",
		"internal/host/move", "internal/host/record", "internal/host/lock"},
	"internal/host/agent": {"WORDS", "internal/api/agent", "internal/decide/reconcile", "internal/decide/drift",
		"internal/host/operate", "internal/host/migrate", "internal/host/lock"},
	"internal/host/fleetofone": {"WORDS", "internal/api/fleet", "internal/decide/place", "internal/host/operate"},
	"internal/host/handoff":    {"WORDS", "internal/api/guest", "internal/decide/handoff", "internal/decide/scale"},
	"internal/host/metrics":    {"WORDS"},
	"internal/host/operate": {"WORDS", "internal/decide", "internal/host/observe", "internal/host/apply",
		"internal/host/claim"},
	"internal/host/move": {"WORDS", "internal/decide", "internal/host/operate", "internal/host/apply",
		"internal/host/claim"},

	"internal/host/migrate": {"WORDS", "internal/host/operate"},

	"internal/host/labcounter":          {"WORDS", "internal/host/linux", "internal/host/watch"}, // it is a meter
	"internal/host/local":               {"WORDS", "internal/host", "internal/decide/handoff"},   // it joins the drivers
	"internal/host/hosttest":            {"WORDS", "internal/host"},                              // for tests
	"internal/host/operate/operatetest": {"WORDS", "internal/host"},                              // for tests

	"lab":              {"WORDS", "internal/host/labcounter", "internal/api/guest"},
	"internal/picture": {"WORDS"},
	"internal/top":     {"WORDS"},

	"cmd/numavisor":        {"ALL"},
	"cmd/numavisor-server": {"ALL"},
	"cmd/numavisor-guest":  {"internal/api/guest", "internal/guestagent"},

	"tools/mutate": {}, // for developers: which changes to the code the tests notice
	"tools/words":  {},
	// for developers: processes and simulated hosts; a fleet of them that break
	"tools/process": {"WORDS"},
	"tools/simhost": {"WORDS", "internal/host/agent", "internal/host/fake", "internal/host/hosttest",
		"internal/host/operate"},
	"tools/faults": {"WORDS", "internal/api/fleet", "internal/host/agent", "internal/host/fake", "internal/host/migrate",
		"internal/host/record", "internal/server/auth", "tools/process", "tools/simhost"},
	"tools/fleetload": {"WORDS", "internal/api/fleet", "internal/host/agent", "internal/host/fake",
		"internal/host/operate", "internal/decide/schedule", "internal/server/store", "lab/cputime", "tools/process",
		"tools/simhost"}, // what a server takes with many hosts
	// the REST API, tested from its own description
	"tools/apitest": {"WORDS", "internal/api/fleet", "internal/host/agent", "internal/host/fake",
		"internal/host/fleetofone", "internal/host/migrate", "internal/host/operate", "tools/process", "tools/simhost"},
}

var words = []string{"internal/topology", "internal/text", "internal/strictyaml", "internal/guest",
	"internal/inventory", "internal/policy", "internal/plan", "internal/alarm", "internal/journal", "internal/history", "internal/status",
	"internal/fleet"}

func TestRoomsLookOnlyWhereTheyMay(t *testing.T) {
	seen := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if path == "../bin" { // what was built, and the source of an earlier version for 'make test-upgrade'
			return filepath.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		room := roomOf(filepath.ToSlash(filepath.Dir(strings.TrimPrefix(path, "../"))))
		if room == "" {
			t.Errorf("%s: is in no room of the floor plan; add its room to the table with what it may import", path)
			return nil
		}
		seen[room] = true
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imp := range file.Imports {
			target, _ := strconv.Unquote(imp.Path.Value)
			if inside, ok := strings.CutPrefix(target, module); ok && !mayImport(room, inside) {
				t.Errorf("%s: %s may not import %s", path, room, inside)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for room := range rooms {
		if !seen[room] {
			t.Errorf("room %s is in the table but holds no code", room)
		}
	}
}

// TestRooms_InternalNeverImportsLab covers test files too: the lab boots QEMU
// and embeds C sources, and neither belongs into the daemon.
func TestRooms_InternalNeverImportsLab(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imp := range file.Imports {
			target, _ := strconv.Unquote(imp.Path.Value)
			if target == module+"lab" { // a test may use what does not boot one, such as lab/rotate
				t.Errorf("%s imports %s; use internal/host/labcounter to read the lab's counter", path, target)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// serverOnly holds the packages outside this module that only numavisor-server links: they
// would cost each daemon 25 MiB (docs/decisions/0019-state-in-etcd.md).
var serverOnly = []string{"go.etcd.io", "github.com/prometheus/prometheus", "google.golang.org/grpc"}

// TestRooms_TheDaemonLinksNoEtcd follows the imports of cmd/numavisor within this module.
func TestRooms_TheDaemonLinksNoEtcd(t *testing.T) {
	todo, from := []string{"cmd/numavisor"}, map[string]string{"cmd/numavisor": ""}
	for len(todo) > 0 {
		folder := todo[0]
		todo = todo[1:]
		files, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", folder, len(files), err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, imp := range file.Imports {
				target, _ := strconv.Unquote(imp.Path.Value)
				for _, outside := range serverOnly {
					if target == outside || strings.HasPrefix(target, outside+"/") {
						t.Errorf("cmd/numavisor links %s: %s imports it; imported by %s", outside, path, from[folder])
					}
				}
				inside, ok := strings.CutPrefix(target, module)
				if _, seen := from[inside]; ok && !seen {
					from[inside] = folder
					todo = append(todo, inside)
				}
			}
		}
	}
}

// roomOf returns the room a folder belongs to: itself or the room above it.
func roomOf(folder string) string {
	for f := folder; f != "."; f = filepath.ToSlash(filepath.Dir(f)) {
		if _, ok := rooms[f]; ok {
			return f
		}
	}
	return ""
}

func mayImport(room, target string) bool {
	for _, allowed := range append([]string{room}, rooms[room]...) {
		group := []string{allowed}
		switch allowed {
		case "ALL":
			return true
		case "WORDS":
			group = words
		}
		for _, g := range group {
			if target == g || strings.HasPrefix(target, g+"/") {
				return true
			}
		}
	}
	return false
}
