# make test needs nothing but Go on a Debian or Ubuntu machine: it finds
# memcached or installs it.
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: test lint setup bench histories

test: setup lint
	GORACE=atexit_sleep_ms=0 go test -race -shuffle=on ./...

lint:
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt would change:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...

setup:
	@deploy/install-memcached

bench: setup
	go test -run '^$$' -bench . -benchmem ./...

# For ten minutes, from another seed each time.
histories: setup
	go test -race -timeout 20m -run 'TestHistories$$' ./cmd/server -histories 10m -history $$(date +%s)
