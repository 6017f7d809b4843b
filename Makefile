# Two targets matter: make demo and make test. Both do all their own set-up on
# a Debian machine that has Go and make.

GO        ?= go
GOFLAGS   := -tags=libvirt_dlopen -buildvcs=false
BIN       := bin/numavisor
SERVER    := bin/numavisor-server
GUEST     := bin/numavisor-guest
# golangci-lint is built once per version: its first build takes minutes.
LINTER    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
LINT      := v2.5.0
LINTBIN   := bin/tools/golangci-lint-$(LINT)
# nfpm makes the deb and the rpm. It is built once, too; later versions need
# modules that are not on the Go proxy.
PACKER    := github.com/goreleaser/nfpm/v2/cmd/nfpm
NFPM      := v2.45.2
NFPMBIN   := bin/tools/nfpm-$(NFPM)
VULN      := golang.org/x/vuln/cmd/govulncheck@v1.9.0
VULNDB    ?= https://vuln.go.dev
TESTSUM   := gotest.tools/gotestsum@v1.13.0
PACKAGES  := gcc libc6-dev qemu-system-x86 qemu-utils libvirt-daemon-system libvirt-clients curl numactl busybox-static e2fsprogs kmod hwloc-nox
export GOFLAGS

# What the program says of itself. All of it depends on the commit only, so that
# two builds of one commit are equal. Before the first tag, the version counts
# commits from v0.0.0; a tree without git has no commit.
VERSION   := $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null || \
               { n=$$(git rev-list --count HEAD 2>/dev/null) && \
                 echo "v0.0.0-$$n-g$$(git describe --always --exclude '*' --dirty)"; } || echo v0.0.0)
COMMIT    := $(shell git rev-parse HEAD 2>/dev/null)
DATE      := $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null)
LDFLAGS   := -s -w -X main.linkedVersion=$(VERSION) -X main.linkedCommit=$(COMMIT) -X main.linkedDate=$(DATE)

# The race detector makes tests up to ten times slower. It watches the packages
# that start goroutines, share data between them, or serve HTTP.
CONCURRENT = $(shell grep -rlE --include='*.go' '^[[:space:]]*go [a-zA-Z]|"(sync|sync/atomic|net/http)"' cmd internal lab | xargs -n1 dirname | sort -u | sed 's,^,./,')
SEQUENTIAL = $(filter-out $(CONCURRENT),$(patsubst $(CURDIR)/%,./%,$(shell $(GO) list -f '{{.Dir}}' ./...)))
# The slowest property tests run in full in one of three landings, by the
# number of commits, and in 'make test-all'. The lab's long tests rotate alike.
THIRD      = $(shell echo $$(( $$(git rev-list --count HEAD 2>/dev/null || echo 0) % 3 )))
SHORT      = $(if $(filter 0,$(THIRD)),,-short)
# Property tests draw the same hosts in each 'make test', so that a commit that
# passed passes again. 'make explore' and 'make test-all' draw new ones.
RAPID_SEED ?= 1
export RAPID_SEED

# Packages have a version that sorts: commits after a tag count up.
EPOCH     := $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
PACKAGE_VERSION = $(shell echo "$(VERSION)" | sed -e 's/^v//' -e 's/-\([0-9]*\)-g/+\1.g/' -e 's/-/./g')
ARCH      := $(shell $(GO) env GOARCH)
PREFIX    ?= /usr/local
SYSCONF   ?= /etc
ROOT       = $(DESTDIR)$(PREFIX)

.PHONY: install uninstall package package-test man build print-ldflags demo test test-all unit quick lab-test lab-test-all lab-one explore fuzz bench bench-lab bench-daemon bench-handoff simulate-handoff test-faults install-guest lint vuln mutate packages clean

build: packages
	$(GO) build -trimpath -ldflags="$(LDFLAGS)" -o $(BIN) ./cmd/numavisor
	$(GO) build -trimpath -ldflags="$(LDFLAGS)" -o $(SERVER) ./cmd/numavisor-server
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w -X main.linkedVersion=$(VERSION)" -o $(GUEST) ./cmd/numavisor-guest

print-ldflags:
	@echo "$(LDFLAGS)"

# The main job, on a real multi-node host with real libvirt and KVM guests.
demo: build
	$(BIN) lab demo

# Make builds 'packages' once, for the first target that needs it: what all of them need is named here.
test test-all: PACKAGES += shellcheck rpm man-db systemd procps genisoimage
test: lint unit package-test lab-test

# Everything, without rotation: before a release.
test-all: SHORT =
test-all: RAPID_SEED = 0
test-all: lint unit package-test lab-test-all

unit: PACKAGES += genisoimage
unit: packages
	@echo "== go vet and gofmt"
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these files"; exit 1; }
	$(GO) vet ./...
	@echo "== unit tests, with the race detector where there are goroutines"
	$(GO) test $(SHORT) -race -skip '^(TestScripts|TestResident)' $(CONCURRENT)
	$(GO) test $(SHORT) $(SEQUENTIAL)
	@echo "== conversations with the program, and the daemon's memory: without the race detector"
	$(GO) test -run '^(TestScripts|TestResident)' ./cmd/numavisor

# Seconds: gofmt, vet and short tests of what differs from main, and of its importers.
quick:
	@testdata/quick

# End-to-end tests on a NUMA host in QEMU: every path once, and a part of the long tests.
lab-test: build
	@echo "== tests in the lab"
	$(GO) run ./lab/suite -runner $(TESTSUM)

lab-test-all: build
	@echo "== all tests in the lab"
	$(GO) run ./lab/suite -runner $(TESTSUM) -all

# One test in the lab: make lab-one T=TestLabRepairsDrift; T=TestLabXen.* runs all of Xen.
lab-one: build
	@test -n "$(T)" || { echo "usage: make lab-one T=TestLabNAME"; exit 2; }
	@folder=$$(grep -rl --include='*_test.go' "^func $(T)(" lab | xargs -r -n1 dirname); \
	test -n "$$folder" || { echo "lab/ has no test $(T)"; exit 2; }; \
	NUMAVISOR_LAB=1 $(GO) test -count=1 -v -timeout=30m -run '^$(T)$$' ./$$folder

# Property tests with new random hosts: make explore CHECKS=1000. A failure prints
# its seed; it becomes a test of its own.
explore: RAPID_SEED = 0
explore:
	RAPID_CHECKS=$(or $(CHECKS),1000) $(GO) test -short -count=1 -timeout=60m \
		$(addprefix ./,$(shell grep -rl --include='*_test.go' '"pgregory.net/rapid"' cmd internal lab | xargs -n1 dirname | sort -u))

fuzz:
	./testdata/fuzz-all $(or $(FUZZTIME),20s)

# Thirds of the CPUs, overcommitted vCPUs and hand-over, compared in a simulation.
simulate-handoff:
	$(GO) test -count=1 -run Simulated -v ./internal/decide/handoff

bench:
	$(GO) test -run '^$$' -bench . -benchmem ./internal/...

# Benchmarks of deciding at an earlier commit and now, in turn, in one table of CPU times:
# make bench-decide ROUNDS=5 BEFORE=27d9484.
.PHONY: bench-decide
bench-decide:
	./testdata/bench-decide $(or $(ROUNDS),3) $(BEFORE)

# Numavisor against none, kernel balancing, numad and the hand-pinned baseline in all layouts, three rounds:
# some eight hours on two CPUs that do nothing else. Interrupted, it continues with the first missing run.
# make bench-lab BENCHFLAGS='--layout tight --rounds 1' RESULTS=tight.json measures less.
bench-lab: PACKAGES += numad
bench-lab: build
	$(BIN) lab bench --results $(or $(RESULTS),bench-lab.json) $(or $(BENCHFLAGS),--layout all)

# What placement is worth on a Xen host, in one lab: some 15 minutes; BENCHFLAGS='--guests 4' measures less.
.PHONY: bench-xen
bench-xen: build
	$(BIN) lab bench --hypervisor xen $(BENCHFLAGS)

# What it takes to park a vCPU: limits of programs and a partition against CPU offline, in turn, in a lab whose clock
# is slow. ROUNDS=20 takes some 8 minutes.
bench-handoff: build
	NUMAVISOR_LAB=1 NUMAVISOR_HANDOFF_ROUNDS=$(or $(ROUNDS),100) $(GO) test -count=1 -v -timeout=30m \
	  -run '^TestLabHandOffCost$$' ./lab/e2e

# Three mirrored VMs that are busy by turns share CPUs in three ways, in the lab: thirds, overcommitted, hand-over.
# make bench-sharing REPEATS=3 takes some 40 minutes on two CPUs that do nothing else: the lab's clock is slow.
# WAYS="thirds hand-over" runs two of them.
.PHONY: bench-sharing
bench-sharing: build
	NUMAVISOR_LAB=1 NUMAVISOR_HANDOFF_REPEATS=$(or $(REPEATS),3) NUMAVISOR_HANDOFF_WAYS="$(WAYS)" $(GO) test -count=1 -v -timeout=60m \
	  -run '^TestLabHandoffCompared$$' ./lab/e2e

# A program like PARSEC's canneal in a mirrored VM, on one node, on both, and by hand-over, while another VM loads the
# memory of the other node. make bench-anneal REPEATS=3 takes some 15 minutes on two CPUs that do nothing else.
.PHONY: bench-anneal
bench-anneal: build
	NUMAVISOR_LAB=1 NUMAVISOR_ANNEAL_REPEATS=$(or $(REPEATS),3) $(GO) test -count=1 -v -timeout=60m \
	  -run '^TestLabAnneal$$' ./lab/e2e

# What the daemon takes with 200 guests of libvirt: as root, 10 GiB, some minutes.
bench-daemon: build
	testdata/daemon-cost $(GUESTS)

# The server with many hosts: CPU time, latency and memory with daemons that report, placements a second. Some ten
# minutes and 8 GiB: make bench-fleet HOSTS=2000 VMS=20000 DAEMONS=2000 SECONDS=30 measures less.
.PHONY: bench-fleet
bench-fleet: build
	$(GO) build -trimpath -o bin/fleetload ./tools/fleetload
	bin/fleetload -server $(SERVER) -hosts $(or $(HOSTS),10000) -vms $(or $(VMS),100000) \
	  -daemons $(or $(DAEMONS),2000) -time $(or $(SECONDS),60)s $(FLEETFLAGS)

# A fleet of processes whose servers, daemons, disks and networks break at random, under load: as root.
# make test-faults FAULTFLAGS='-seed 7' repeats the schedule of one run.
test-faults: build
	$(GO) build -trimpath -o bin/faults ./tools/faults
	bin/faults -server $(SERVER) $(or $(FAULTFLAGS),-runs 200)

# Servers and daemons of an earlier commit are replaced one by one under load: make test-upgrade BEFORE=HEAD~100.
# Each of the three runs has another order. The earlier commit must have tools/faults.
.PHONY: test-upgrade
test-upgrade: build
	$(GO) build -trimpath -o bin/faults ./tools/faults
	rm -rf bin/before && mkdir -p bin/before/source
	git archive $(or $(BEFORE),HEAD~1) | tar x -C bin/before/source
	cd bin/before/source && $(GO) build -trimpath -o .. ./cmd/numavisor-server ./tools/faults
	bin/faults -server $(SERVER) -before-server bin/before/numavisor-server -before-hosts bin/before/faults \
	  $(or $(FAULTFLAGS),-runs 3)

# The REST API of a real server with simulated hosts, tested from its OpenAPI document by schemathesis (PyPI), as users
# of each role: no 5xx, and no answer that the document does not have. Before that, the API of one host, as a daemon
# serves it on its socket (APIFLAGS='-role one-host': only that). make test-api SECONDS=600 APIFLAGS='-seed 7'
.PHONY: test-api
test-api: build bin/api/bin/st
	$(GO) build -trimpath -o bin/apitest ./tools/apitest
	bin/apitest -server $(SERVER) -schemathesis bin/api/bin/st -time $(or $(SECONDS),120)s $(APIFLAGS)

bin/api/bin/st: tools/apitest/requirements.txt
	@echo "== installing schemathesis below bin/api, once"
	@python3 -m venv --clear bin/api || { echo "make test-api: needs python3 with venv: apt-get install python3-venv"; exit 1; }
	bin/api/bin/pip install --quiet --disable-pip-version-check -r tools/apitest/requirements.txt
	@touch $@

# Requests of users at three servers with late state, by seeds: nothing is claimed twice. SEEDS=5000 takes minutes.
.PHONY: test-claims
test-claims:
	CLAIM_RUNS=$(or $(SEEDS),5000) CLAIM_SEED=$(or $(SEED),0) $(GO) test -count=1 -timeout 2h -parallel 16 \
	  -run '^TestServers_ClaimNothingTwice$$' ./internal/server

# Small changes to the code that its tests do not notice: make mutate ROOM=./internal/decide/check
mutate:
	$(GO) run ./tools/mutate $(ROOM)

# shellcheck does not know busybox; lab/init.sh is the first process and cannot
# leave when cd fails (SC2164).
lint: PACKAGES += shellcheck
lint: packages $(LINTBIN)
	@echo "== go mod tidy"
	$(GO) mod tidy -diff
	@echo "== shellcheck"
	shellcheck .ci/run testdata/quick testdata/fuzz-all testdata/daemon-cost testdata/package-test \
	  deploy/packages/postinst deploy/packages/prerm deploy/packages/postrm
	shellcheck -s dash -e SC2164 lab/*.sh
	@echo "== wording"
	$(GO) run ./tools/words
	@echo "== golangci-lint"
	$(LINTBIN) run

# Known vulnerabilities in what the program calls; needs the vulnerability database.
vuln: packages
	@curl -sSf -m 20 -o /dev/null $(VULNDB)/index/db.json || { \
	  echo "make vuln: cannot reach the vulnerability database $(VULNDB): nothing was checked; set VULNDB to a mirror"; exit 1; }
	$(GO) run $(VULN) -db $(VULNDB) ./...

$(LINTBIN):
	@echo "== building golangci-lint $(LINT), once"
	@mkdir -p $(@D)
	GOFLAGS= GOBIN=$(CURDIR)/$(@D) $(GO) install $(LINTER)@$(LINT)
	@mv $(@D)/golangci-lint $@

$(NFPMBIN):
	@echo "== building nfpm $(NFPM), once"
	@mkdir -p $(@D)
	GOFLAGS=-trimpath GOBIN=$(CURDIR)/$(@D) $(GO) install $(PACKER)@$(NFPM)
	@mv $(@D)/nfpm $@

# Manual pages, in bin/man.
man: build
	@rm -rf bin/man && mkdir -p bin/man
	$(BIN) man bin/man
	gzip -9n bin/man/*.1

# The programs, their units, pages, completions, rules and documents below
# DESTDIR/PREFIX, and the policy with all defaults, unless there is one.
install: man
	install -D -m 755 $(BIN) $(ROOT)/bin/numavisor
	install -D -m 755 $(SERVER) $(ROOT)/bin/numavisor-server
	install -D -m 644 -t $(ROOT)/lib/systemd/system deploy/systemd/numavisor.service deploy/systemd/numavisor-server.service
	install -D -m 644 -t $(ROOT)/share/man/man1 bin/man/*.1.gz
	install -d $(ROOT)/share/bash-completion/completions $(ROOT)/share/zsh/site-functions \
	  $(ROOT)/share/fish/vendor_completions.d
	$(BIN) completion bash >$(ROOT)/share/bash-completion/completions/numavisor
	$(BIN) completion zsh >$(ROOT)/share/zsh/site-functions/_numavisor
	$(BIN) completion fish >$(ROOT)/share/fish/vendor_completions.d/numavisor.fish
	install -D -m 644 -t $(ROOT)/share/numavisor deploy/prometheus/alerts.yaml deploy/grafana/numavisor.json
	find LICENSE README.md CHANGELOG.md CONTRIBUTING.md docs examples -type f \
	  -exec install -D -m 644 {} $(ROOT)/share/doc/numavisor/{} \;
	@test -z "$(SYSCONF)" || test -e $(DESTDIR)$(SYSCONF)/numavisor/policy.yaml || \
	  install -D -m 644 deploy/packages/policy.yaml $(DESTDIR)$(SYSCONF)/numavisor/policy.yaml

# The agent of mirrored VMs, into the root file system of such a VM: make install-guest DESTDIR=/mnt PREFIX=/usr
install-guest: build
	install -D -m 755 $(GUEST) $(ROOT)/bin/numavisor-guest
	install -D -m 644 -t $(ROOT)/lib/systemd/system deploy/systemd/numavisor-guest.service
	install -D -m 755 -t $(DESTDIR)/etc/init.d deploy/openrc/numavisor-guest

# The policy and the records stay: docs/packages.md has the commands for them.
uninstall:
	rm -f $(ROOT)/bin/numavisor $(ROOT)/bin/numavisor-server $(ROOT)/lib/systemd/system/numavisor.service \
	  $(ROOT)/lib/systemd/system/numavisor-server.service $(ROOT)/share/man/man1/numavisor.1.gz \
	  $(ROOT)/share/man/man1/numavisor-*.1.gz $(ROOT)/share/bash-completion/completions/numavisor \
	  $(ROOT)/share/zsh/site-functions/_numavisor $(ROOT)/share/fish/vendor_completions.d/numavisor.fish
	rm -rf $(ROOT)/share/numavisor $(ROOT)/share/doc/numavisor

# deb and rpm of the programs for hosts and of the agent for VMs, in bin/packages. Two builds of one commit are equal.
package: build $(NFPMBIN)
	@rm -rf bin/stage bin/stage-guest bin/packages && mkdir -p bin/packages
	$(MAKE) -s install DESTDIR=bin/stage PREFIX=/usr SYSCONF=
	$(MAKE) -s install-guest DESTDIR=bin/stage-guest PREFIX=/usr
	for kind in deb rpm; do for what in nfpm nfpm-guest; do \
	  SOURCE_DATE_EPOCH=$(EPOCH) ARCH=$(ARCH) PACKAGE_VERSION=$(PACKAGE_VERSION) \
	    $(NFPMBIN) package -f deploy/packages/$$what.yaml -p $$kind -t bin/packages || exit 1; done; done

# Installs, runs under systemd, upgrades and removes the deb and the rpm in a
# copy of this machine's root in memory.
package-test: PACKAGES += rpm man-db systemd procps
package-test: package
	@echo "== packages"
	SOURCE_DATE_EPOCH=$(EPOCH) ARCH=$(ARCH) PACKAGE_VERSION=$(PACKAGE_VERSION) NFPM=$(NFPMBIN) COMMIT=$(COMMIT) \
	  testdata/package-test

# Installs what is missing, and says so; nothing happens where all is there.
packages:
	@missing=; for p in $(PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "== installing$$missing"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; fi

clean:
	rm -rf bin
