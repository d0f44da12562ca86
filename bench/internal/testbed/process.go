// Package testbed starts what an experiment measures, each as a process on
// loopback: weir, Memcached, and the bench's own server that does nothing. It
// reads what they used: processor time, memory, commands and keys.
//
// Start with BuildWeir and StartMemcached. Whoever starts a process stops it.
package testbed

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
)

// startTimeout bounds how long a server may take until it listens.
const startTimeout = 10 * time.Second

// A Process is a process that listens on loopback.
type Process struct {
	Addr   string
	GRPC   string // the address of its rate limit service of Envoy, if it has one
	Cmd    *exec.Cmd
	Log    *log // what it has written to stderr
	exited chan struct{}
	ending syscall.Signal // what Stop sends
}

// startProcess starts cmd, which must listen on addr, and waits until it does.
func startProcess(ctx context.Context, addr string, cmd *exec.Cmd) (*Process, error) {
	s := &Process{Addr: addr, Cmd: cmd, Log: new(log), exited: make(chan struct{}), ending: syscall.SIGKILL}
	cmd.Stderr = s.Log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait() // whoever needs the process notices that it is gone
		close(s.exited)
	}()
	return s.await(ctx, addr)
}

// await waits until the process listens on addr, and ends it if it doesn't. The
// error has what it said.
func (s *Process) await(ctx context.Context, addr string) (*Process, error) {
	err := Poll(ctx, startTimeout, 2*time.Millisecond, func() (bool, error) {
		select {
		case <-s.exited:
			return false, errors.New("it ended at once")
		default:
		}
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil, nil
	})
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("%s doesn't listen on %s: %w: %s", filepath.Base(s.Cmd.Path), addr, err, s.Log)
	}
	return s, nil
}

// Stop ends the process at once and returns when it has ended.
func (s *Process) Stop() {
	_ = s.Cmd.Process.Signal(s.ending) // the only error is that it has ended already
	<-s.exited
}

// Signal sends a signal. It returns when the process has stopped or gone on, if
// that is what the signal asks for; its threads may go on a little after a
// SIGSTOP.
func (s *Process) Signal(sig syscall.Signal) error {
	if err := s.Cmd.Process.Signal(sig); err != nil || sig != syscall.SIGSTOP {
		return err
	}
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.Cmd.Process.Pid))
		if err != nil || bytes.Contains(stat, []byte(") T ")) { // behind the name
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// CPU returns the processor time that the process has used, until it has ended.
func (s *Process) CPU() (time.Duration, error) {
	used, err := cpu(s.Cmd.Process.Pid)
	if err != nil {
		return 0, fmt.Errorf("processor time of %s: %w", filepath.Base(s.Cmd.Path), err)
	}
	return used, nil
}

// OwnCPU returns the processor time that this process has used.
func OwnCPU() (time.Duration, error) { return cpu(os.Getpid()) }

// Clocks tell the processor times of processes, each with what its own is added to.
type Clocks map[*time.Duration]func() (time.Duration, error)

// During adds what the processes use while run runs.
func (c Clocks) During(run func() error) error {
	add := func(sign time.Duration) error {
		for into, cpu := range c {
			used, err := cpu()
			if err != nil {
				return err
			}
			*into += sign * used
		}
		return nil
	}
	if err := add(-1); err != nil {
		return err
	}
	return cmp.Or(run(), add(+1))
}

// A log keeps what is written to it. It is safe for concurrent use.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write returns no error.
func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// startOnFreePort starts the command for a loopback address on which nothing
// listens.
func startOnFreePort(ctx context.Context, command func(addr string) *exec.Cmd) (*Process, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	return startProcess(ctx, addr, command(addr))
}

// withGRPC is startOnFreePort of what listens on a second address too, for gRPC.
func withGRPC(ctx context.Context, start func(grpc string) (*Process, error)) (*Process, error) {
	grpc, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p, err := start(grpc)
	if err != nil {
		return nil, err
	}
	p.GRPC = grpc
	return p.await(ctx, grpc)
}

// NoopCommand is the bench's command that is the no-op server.
const NoopCommand = "noop"

// StartNoop starts the no-op server, this program as another process.
func StartNoop(ctx context.Context, r loadgen.Reply) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return startOnFreePort(ctx, func(addr string) *exec.Cmd {
		cmd := exec.Command(self, NoopCommand, addr)
		cmd.Stdin = bytes.NewReader(encoded)
		return cmd
	})
}

// A Build is weir's server in a directory of its own, and its policies.
type Build struct {
	PolicyFile string // "" for the policies that are built in
	Binary     string
	dir        string
	profiles   string // the directory of its CPU profiles; "" if it writes none
}

// BuildWeir builds the server, which Remove has to remove. Without policies it
// has those that are built in. Where profiles names a directory, servers write CPU
// profiles to it.
func BuildWeir(ctx context.Context, policies, profiles string) (*Build, error) {
	report.Progress("building weir")
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return nil, err
	}
	b := &Build{dir: dir, Binary: filepath.Join(dir, "weir"), profiles: profiles}
	args := []string{"run", "-buildvcs=false", "-exec", "cp"} // of what go run keeps, as go build links anew each time
	if profiles != "" {
		args = append(args, "-tags", "profile")
		err = os.MkdirAll(profiles, 0o755)
	}
	if err == nil && policies != "" {
		b.PolicyFile = filepath.Join(dir, "policies.yaml")
		err = os.WriteFile(b.PolicyFile, []byte(policies), 0o600)
	}
	if err == nil {
		var out []byte
		out, err = exec.CommandContext(ctx, "go", append(args, "weir/cmd/server", b.Binary)...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("go build weir/cmd/server: %w: %s", err, out)
		}
	}
	if err != nil {
		b.Remove()
		return nil, err
	}
	return b, nil
}

// Remove removes the files. What was started goes on.
func (b *Build) Remove() { _ = os.RemoveAll(b.dir) }

// Start starts weir on a free port with further arguments.
func (b *Build) Start(ctx context.Context, memcached string, args ...string) (*Process, error) {
	p, err := startOnFreePort(ctx, func(addr string) *exec.Cmd {
		cmd := exec.Command(b.Binary, append([]string{
			"-listen", addr, "-config", b.PolicyFile, "-memcached", memcached, "-log-level", "warn",
		}, args...)...)
		// Machines that are busy with other things stall now and then: the timeout
		// must not turn that into failures. More would cost something, as a check
		// looks around its window for so long.
		cmd.Env = append([]string{"WEIR_STORE_TIMEOUT=200ms"}, os.Environ()...)
		if b.profiles != "" {
			_, port, _ := net.SplitHostPort(addr)
			cmd.Env = append(cmd.Env, "PROFILE="+filepath.Join(b.profiles, filepath.Base(b.dir)+"-"+port+".pprof"))
		}
		return cmd
	})
	if err == nil && b.profiles != "" {
		p.ending = syscall.SIGUSR1
	}
	return p, err
}

// StartRLS starts weir as Start does, with the rate limit service of Envoy by a
// file.
func (b *Build) StartRLS(ctx context.Context, memcached, file string, args ...string) (*Process, error) {
	return withGRPC(ctx, func(grpc string) (*Process, error) {
		return b.Start(ctx, memcached, append([]string{"-grpc-listen", grpc, "-envoy-config", file}, args...)...)
	})
}

// StartRatelimit starts envoyproxy/ratelimit, the program at path, on Memcached
// with the files in root/ratelimit/config. It has this process's environment, so that
// it can be set up there; unless that says otherwise it keeps a connection to Memcached
// for each caller. And it has the variables, as name=value.
func StartRatelimit(ctx context.Context, path, memcached, root string, callers int, variables ...string) (*Process, error) {
	debug, err := freeAddr()
	if err != nil {
		return nil, err
	}
	return withGRPC(ctx, func(grpc string) (*Process, error) {
		return startOnFreePort(ctx, func(addr string) *exec.Cmd {
			cmd := exec.Command(path)
			cmd.Env = append([]string{"LOG_LEVEL=error", "MEMCACHE_MAX_IDLE_CONNS=" + strconv.Itoa(callers)}, os.Environ()...)
			cmd.Env = append(cmd.Env,
				"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT="+memcached, "USE_STATSD=false",
				"RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false")
			for name, listens := range map[string]string{"": addr, "GRPC_": grpc, "DEBUG_": debug} {
				host, port, _ := net.SplitHostPort(listens)
				cmd.Env = append(cmd.Env, name+"HOST="+host, name+"PORT="+port)
			}
			cmd.Env = append(cmd.Env, variables...)
			return cmd
		})
	})
}

// StartAsRatelimit starts weir as StartRatelimit starts envoyproxy/ratelimit: by that name,
// which has it take the same variables.
func (b *Build) StartAsRatelimit(ctx context.Context, memcached, root string, variables ...string) (*Process, error) {
	path := filepath.Join(b.dir, "ratelimit")
	if err := os.Symlink(b.Binary, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return StartRatelimit(ctx, path, memcached, root, 1, variables...)
}

// StartNode starts a program of Node's, which finds its modules in folder/node_modules,
// its Memcached in MEMCACHED and what to listen on in HOST and PORT.
func StartNode(ctx context.Context, program, folder, memcached string) (*Process, error) {
	return startOnFreePort(ctx, func(addr string) *exec.Cmd {
		host, port, _ := net.SplitHostPort(addr)
		cmd := exec.Command("node", "-")
		cmd.Stdin = strings.NewReader(program)
		cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(folder, "node_modules"), "MEMCACHED="+memcached, "HOST="+host, "PORT="+port)
		return cmd
	})
}

// freeAddr returns a loopback address on which nothing listens. Its port is below the kernel's
// ephemeral ones: so no other process gets it by asking for any port before it is used.
func freeAddr() (addr string, err error) {
	for range 100 {
		addr = fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(20_000))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", err
}

// A Child is this program as another process, which reads JSON from its stdin
// and answers with JSON on its stdout.
type Child struct {
	cmd    *exec.Cmd
	to     *json.Encoder
	from   *json.Decoder
	stderr bytes.Buffer
}

// StartChild starts a command of this program. The end of ctx ends it.
func StartChild(ctx context.Context, command string) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &Child{cmd: exec.CommandContext(ctx, self, command)}
	c.cmd.Stderr = &c.stderr
	stdin, err1 := c.cmd.StdinPipe()
	stdout, err2 := c.cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	c.to, c.from = json.NewEncoder(stdin), json.NewDecoder(stdout)
	return c, c.cmd.Start()
}

// Send sends a value.
func (c *Child) Send(v any) error { return c.failure(c.to.Encode(v)) }

// Receive waits for a value.
func (c *Child) Receive(v any) error { return c.failure(c.from.Decode(v)) }

// failure ends the process, if there is an error, and adds what the process
// complained about.
func (c *Child) failure(err error) error {
	if err == nil {
		return nil
	}
	c.Stop()
	return fmt.Errorf("a process of the bench: %w: %s", err, &c.stderr)
}

// Stop ends the process.
func (c *Child) Stop() {
	_ = c.cmd.Process.Kill() // the only error is that it has ended already
	_ = c.cmd.Wait()
}
