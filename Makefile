# make test needs nothing but Go on a Debian or Ubuntu machine: it finds
# what the tests start, or installs it.
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Another clone or work tree finds in go's cache what this one has compiled.
export GOFLAGS := -trimpath $(shell go env GOFLAGS)

.PHONY: quick test processes racing plain plain-core plain-api plain-counters experiments lint setup bench histories soak fuzz console-pictures module release

# The daily round. It needs no program but Go.
quick: lint
	go test -short -vet=off $$(go list ./... | grep -v '/bench\(/\|$$\)')
	@echo "Left out, and in make test: tests that start processes (memcached, proxies, weir), the race detector, bench and deploy/manifests."

# Tests of these packages, where goroutines meet, run with the race detector. They run without
# it too, as all others do, if it leaves out some of the package: by racetest.Sequential, or by a
# build tag. Two parts run at a time: with three, tests that depend on time fail now and then. The
# longest begin, and plain comes in thirds, so that both end together. lint vets all.
RACING = ./api ./api/client/... ./api/decide ./api/envoy/... ./api/fleet ./api/overrides ./api/plain \
	./bench/internal/loadgen ./bench/internal/testbed ./cas ./cmd/server ./counters/... ./subwindow
RACING_WHOLE = $(shell go list -race -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}} {{.IgnoredGoFiles}}' \
	$(RACING) | grep -v 'racetest\|_test\.go' | cut -d ' ' -f 1)
without_race = $(filter-out $(RACING_WHOLE),$(shell go list $(1)))
GO_TEST = go test -p 1 -vet=off -shuffle=on
# Most tests make little but garbage, and so do compilers and linters. With the race detector a
# large heap costs more than it saves: the detector keeps a multiple of it. There, and for
# processes, which are to run as they do elsewhere, only the build is lazy.
LAZY = GOGC=400 GOMEMLIMIT=1GiB
LAZY_BUILD = $(LAZY) $(GO_TEST) -exec 'env -u GOGC -u GOMEMLIMIT'
test: setup
	@$(MAKE) --no-print-directory -j 2 racing experiments processes plain

# Tests whose outcome may depend on what reads HTTP run with -http net, too: a fifth of the time.
EITHER_WAY = AllOrNone|ThatRace/all_or_none|Connection|Descriptors|Proxies|Shutdown|Stall|Terminate
processes:
	$(LAZY_BUILD) ./cmd/server/e2e
	WEIR_HTTP=net $(LAZY_BUILD) -run '$(EITHER_WAY)' ./cmd/server ./cmd/server/e2e

racing:
	GORACE=atexit_sleep_ms=0 $(LAZY_BUILD) -race $(RACING)

plain: lint plain-core plain-api plain-counters

plain-core:
	$(LAZY) $(GO_TEST) $(filter-out $(shell go list ./api/... ./bench/... ./cmd/server/e2e ./counters/... ./subwindow),$(call without_race,./...))
	go -C deploy/manifests test -count=1 -vet=off ./... # go doesn't see when files above a module change

plain-api:
	$(LAZY) $(GO_TEST) $(call without_race,./api/...)

plain-counters:
	$(LAZY) $(GO_TEST) $(call without_race,./counters/... ./subwindow)

experiments:
	$(LAZY) $(subst -p 1,-p 2,$(GO_TEST)) $(call without_race,./bench/...)

lint:
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt would change:"; echo "$$unformatted"; exit 1; }
	GOGC=400 go vet ./...
	GOGC=400 go run $(STATICCHECK) ./...
	go -C deploy/manifests vet ./...

setup:
	@deploy/install memcached nginx caddy haproxy prometheus chromium

bench: setup
	go test -run '^$$' -bench . -benchmem ./...

# For ten minutes, from another seed each time.
histories: setup
	go test -timeout 20m -run 'Test(Lease)?Histories$$' ./cmd/server/e2e -histories 10m -history $$(date +%s)

# With other random faults each time, for five minutes to one process, and to three.
soak: setup
	go run ./bench faults -rows '^random' -duration 5m -seed $$(date +%s)

# Each target for as long, one after the other. Little of it is for making inputs
# smaller: what runs in the background seems to make each one interesting.
FUZZ_TIME = 30s
fuzz: setup
	@grep -rl '^func Fuzz' --include='*_test.go' . | sort | while read -r file; do \
		for name in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\)(.*/\1/p' "$$file"); do \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZ_TIME) -fuzzminimizetime 10x "./$$(dirname "$$file")" || exit 1; \
		done; \
	done

# Of the page for operators, for deploy/README.md.
console-pictures:
	@deploy/install memcached chromium
	go test -count=1 -run TestConsolePictures ./cmd/server/e2e -pictures $(CURDIR)/deploy/console

# The path under which the module can be fetched: make module NAME=git.example.com/team/weir
module:
	deploy/module "$(NAME)"

# make release VERSION=1.2.3 leaves archives for Linux and their checksums in bin/release,
# and the image, where docker runs.
release:
	@test -n "$(VERSION)" || { echo "make release VERSION=1.2.3"; exit 1; }
	rm -rf bin/release
	deploy/release "$(VERSION)" bin/release
	@if docker info >/dev/null 2>&1; then docker build -t "weir:$(VERSION)" --build-arg VERSION="$(VERSION)" .; \
		else echo "No image was built, as docker doesn't run here."; fi
