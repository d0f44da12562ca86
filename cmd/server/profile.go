//go:build profile

package main

import (
	"log"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
)

// Built with the tag profile, the server writes a CPU profile of all that it
// does to the file that PROFILE names, until SIGUSR1 ends it.
func init() {
	f, err := os.Create(os.Getenv("PROFILE"))
	if err == nil {
		err = pprof.StartCPUProfile(f)
	}
	if err != nil {
		log.Fatal(err)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGUSR1)
	go func() {
		<-end
		pprof.StopCPUProfile()
		if err := f.Close(); err != nil {
			log.Fatal(err)
		}
		os.Exit(0)
	}()
}
