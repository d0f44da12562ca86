// Command server runs weir, a rate limiting service whose only shared store is
// Memcached.
//
// It answers over HTTP whether a client may do something now, by the policies
// of a YAML file. Without flags it has built-in policies and counts in its own
// memory. -help lists the flags; -validate checks a policy file and says what
// it means; -healthcheck asks a running instance whether it is well.
//
// Start reading at newProgram, which puts the parts together.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
)

// heapFloor is the size of untouched ballast: it takes no memory, but raises
// the heap size at which the garbage collector starts. weir keeps so little
// that it would otherwise collect forty times a second under load, which costs
// 3 to 8% of the throughput.
const heapFloor = 64 << 20

// garbage is how much there may be before it is collected, in percent of the heap:
// with many clients, Go's own 100 would be most of what weir takes. GOGC says another.
const garbage = 20

// envoyName is the program that gateways of Envoy start in an image. Called so, weir takes its
// variables.
const envoyName = "ratelimit"

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	floor := make([]byte, heapFloor)
	defer runtime.KeepAlive(floor)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == envoyName {
		args = append([]string{"-envoy-env"}, args...)
	}
	cfg, err := parseConfig(args, os.Environ(), os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = execute(ctx, cfg)
	}
	switch {
	case err == nil:
		return
	case cfg.logFormat == jsonFormat && !cfg.validate && !cfg.healthcheck: // those are for people
		logMistakes(cfg.logger(os.Stderr), "weir ends", err)
	default:
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(1)
}

func execute(ctx context.Context, cfg *config) error {
	switch {
	case cfg.version:
		fmt.Println("weir", version())
		return nil
	case cfg.validate:
		return validate(cfg, os.Stdout)
	case cfg.healthcheck:
		return healthcheck(cfg)
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	signal.Ignore(syscall.SIGPIPE) // the process outlives the reader of its log
	log := newLogWriter(os.Stderr)
	defer log.close()
	p, err := newProgram(cfg, log)
	if err != nil {
		return err
	}
	return p.run(ctx, hangup)
}
