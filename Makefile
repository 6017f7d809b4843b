# Two targets matter: make demo and make test. Both do all their own set-up on
# a Debian machine that has Go and make.

GO        ?= go
GOFLAGS   := -tags=libvirt_dlopen -buildvcs=false
BIN       := bin/numavisor
LINTER    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.5.0
# Runs tests that failed again, up to twice, and says so: the lab's machine is
# emulated, and on a busy one QEMU still may lock up (lab.ErrSilent) or a guest
# be too slow.
TESTSUM   := gotest.tools/gotestsum@v1.13.0
PACKAGES  := gcc libc6-dev qemu-system-x86 libvirt-daemon-system libvirt-clients numactl busybox-static cpio e2fsprogs kmod hwloc-nox
export GOFLAGS

.PHONY: build demo test unit lab-test fuzz bench bench-lab bench-daemon lint mutate packages clean

build: packages
	$(GO) build -trimpath -ldflags="-s -w" -o $(BIN) ./cmd/numavisor

# The main job, on a real multi-node host with real libvirt and KVM guests.
demo: build
	$(BIN) lab demo

test: unit lab-test

unit: packages
	@echo "== go vet and gofmt"
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these files"; exit 1; }
	$(GO) vet ./...
	@echo "== unit tests, with the race detector"
	$(GO) test -race ./...
	@echo "== the daemon's memory, which the race detector would change"
	$(GO) test -count=1 -run TestResident ./cmd/numavisor

# End-to-end tests: each boots a NUMA host in QEMU, one after the other.
lab-test: build
	@echo "== tests in the lab"
	NUMAVISOR_LAB=1 $(GO) run $(TESTSUM) --format testname --rerun-fails=2 --packages=./lab/... -- -count=1 -p=1 -timeout=80m -run Lab

fuzz:
	./testdata/fuzz-all $(or $(FUZZTIME),20s)

bench:
	$(GO) test -run '^$$' -bench . -benchmem ./internal/...

# Numavisor against kernel balancing, numad, placement='auto' and the ideal:
# three runs of each take more than an hour. Interrupted, it goes on where it was.
bench-lab: PACKAGES += numad
bench-lab: build
	$(BIN) lab bench --results $(or $(RESULTS),bench-lab.json) $(BENCHFLAGS)

# What the daemon takes with 200 guests of libvirt: as root, 10 GiB, some minutes.
bench-daemon: build
	testdata/daemon-cost $(GUESTS)

# Small changes to the code that its tests do not notice: make mutate ROOM=./internal/decide/check
mutate:
	$(GO) run ./tools/mutate $(ROOM)

lint:
	$(GO) run $(LINTER) run

# Installs what is missing, and says so; nothing happens where all is there.
packages:
	@missing=; for p in $(PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "== installing$$missing"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; fi

clean:
	rm -rf bin
