package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// startTimeout bounds how long a server may take until it listens.
const startTimeout = 10 * time.Second

// A server is a process that listens on loopback.
type server struct {
	addr   string
	cmd    *exec.Cmd
	exited chan struct{}
}

// startServer starts cmd, which must listen on addr, and waits until it does.
// The error has what the process said on complaints.
func startServer(ctx context.Context, addr string, cmd *exec.Cmd, complaints fmt.Stringer) (*server, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{addr: addr, cmd: cmd, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // whoever needs the process notices that it is gone
		close(s.exited)
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-s.exited:
			return nil, fmt.Errorf("%s ended at once: %s", filepath.Base(cmd.Path), complaints)
		case <-ctx.Done():
			s.stop()
			return nil, fmt.Errorf("%s doesn't listen on %s: %w: %s", filepath.Base(cmd.Path), addr, ctx.Err(), complaints)
		case <-look.C:
		}
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return s, nil
		}
	}
}

// stop ends the process at once and returns when it has ended.
func (s *server) stop() {
	_ = s.cmd.Process.Kill() // the only error is that it has ended already
	<-s.exited
}

// freeAddr returns a loopback address on which nothing listens.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// buildWeir builds the server into dir and returns the binary's path.
func buildWeir(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "weir")
	if out, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", binary, "weir/cmd/server").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build weir/cmd/server: %w: %s", err, out)
	}
	return binary, nil
}

// startWeir starts the binary on a free port with the policies of a file and
// the further arguments.
func startWeir(ctx context.Context, binary, policyFile, memcached string, args ...string) (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	// Machines that are busy with other things stall now and then: the timeout
	// must not turn that into failures. It costs nothing.
	args = append([]string{"-listen", addr, "-config", policyFile, "-memcached", memcached, "-store-timeout", "5s", "-log-level", "warn"}, args...)
	cmd := exec.Command(binary, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	return startServer(ctx, addr, cmd, &stderr)
}

// startNoop starts the no-op server, this program as another process, with
// further arguments.
func startNoop(ctx context.Context, r reply, args ...string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, append([]string{noopCommand, addr}, args...)...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(encoded), &stderr
	return startServer(ctx, addr, cmd, &stderr)
}
