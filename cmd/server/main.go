// Command server runs weir, a rate limiting service whose only shared store is
// Memcached.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
)

// heapFloor is memory that is reserved and never touched, so that it is none of
// the machine's, but counts as alive: the garbage collector waits for as much
// garbage before it starts. weir keeps so little that it would otherwise collect
// forty times a second under load, which is 3 to 8% of what it can do.
const heapFloor = 32 << 20

func main() {
	floor := make([]byte, heapFloor)
	defer runtime.KeepAlive(floor)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := execute(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func execute(ctx context.Context) error {
	cfg, err := parseConfig(os.Args[1:], os.Getenv, os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case cfg.version:
		fmt.Println("weir", version())
		return nil
	case cfg.validate:
		return validate(cfg.policyFile, os.Stdout)
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	p, err := newProgram(cfg, os.Stderr)
	if err != nil {
		return err
	}
	return p.run(ctx, hangup)
}

// version returns the version that the binary was built from, or "devel" and
// the commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return "devel-" + setting.Value[:min(12, len(setting.Value))]
		}
	}
	return "devel"
}
