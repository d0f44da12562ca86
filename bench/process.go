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
	"strconv"
	"strings"
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

// clockTicks is how many units of processor time Linux counts a second in.
const clockTicks = 100

// cpu returns the processor time that the process has used.
func (s *server) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(stat))
}

// parseCPU returns the processor time in a /proc/<pid>/stat.
func parseCPU(stat string) (time.Duration, error) {
	// The second field, the name, may have spaces and brackets in it.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const user, system = 14 - 3, 15 - 3
	if len(fields) <= system {
		return 0, fmt.Errorf("/proc stat has %d fields: %.100q", len(fields), stat)
	}
	var ticks int64
	for _, field := range []string{fields[user], fields[system]} {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / clockTicks, nil
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
