package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// bin is a folder for what is built.
var bin string

func TestMain(m *testing.M) {
	memcachedtest.Overlap(4)
	if testing.Short() { // which is for tests that start no process
		return
	}
	var err error
	if bin, err = os.MkdirTemp("", "weir"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(tests{m}, goleak.Cleanup(func(code int) {
		os.RemoveAll(bin)
		os.Exit(code)
	}))
}

// tests end with the browser of them all.
type tests struct{ *testing.M }

func (m tests) Run() int {
	defer endChromium()
	return m.M.Run()
}

// goTool has the go command do something with the server's package.
func goTool(args ...string) error {
	// So that go test takes no cached result when the server has changed, or what reads its HTTP.
	os.Getenv("WEIR_HTTP")
	if _, err := os.ReadDir(".."); err != nil {
		return err
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// built returns a function that makes a file of the server's package when it is first called.
func built(name, command string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		file := filepath.Join(bin, name)
		return file, goTool(strings.Fields(strings.ReplaceAll(command, "FILE", file))...)
	})
}

// The server is a copy of the binary that go run keeps: go build would link it anew each time.
var (
	buildServer = built("weir", "run -exec cp .. FILE")
	buildRacing = sync.OnceValues(func() (string, error) {
		overlay, err := clockOffset()
		if err != nil {
			return "", err
		}
		return built("racing", "run -race -overlay "+overlay+" -exec cp .. FILE")()
	})
)

// clockOffset returns an overlay with which the clock of the server can be off.
func clockOffset() (file string, err error) {
	folder, err := filepath.Abs("..")
	if err != nil {
		return "", err
	}
	source := filepath.Join(folder, "clockoffset")
	file = filepath.Join(bin, "overlay.json")
	return file, os.WriteFile(file, fmt.Appendf(nil, `{"Replace":{%q:%q}}`, source+".go", source+"_test.go"), 0o600)
}

// A racing test is one whose processes have the race detector: those in which requests, stalls
// and ends meet. Elsewhere it would only take longer.
type racing struct{ testing.TB }

// binary returns the file of the server.
func binary(t testing.TB) string {
	t.Helper()
	build := buildServer
	if _, ok := t.(racing); ok {
		build = buildRacing
	}
	file, err := build()
	require.NoError(t, err)
	return file
}

// noRaceSleep keeps the race detector from making each exit take a second.
const noRaceSleep = "GORACE=atexit_sleep_ms=0"

// process is the real binary, running.
type process struct {
	servertest.Service
	log    *servertest.Log
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has
	killed bool          // by the test
}

// startProcess starts the binary on a free port. When the test ends it gets
// SIGTERM and has to exit with 0, which it doesn't after a data race.
func startProcess(t testing.TB, args ...string) *process {
	t.Helper()
	return runProcess(t, exec.Command(binary(t), append([]string{"-listen", "127.0.0.1:0"}, args...)...))
}

// startShifted is startProcess with the race detector and a clock that is off.
func startShifted(t testing.TB, offset time.Duration, args ...string) *process {
	t.Helper()
	cmd := exec.Command(binary(racing{t}), append([]string{"-listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), "TEST_CLOCK_OFFSET="+offset.String())
	return runProcess(t, cmd)
}

func runProcess(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{log: servertest.NewLog(), cmd: cmd, exited: make(chan struct{})}
	p.cmd.Stderr = p.log
	p.cmd.Env = append(cmd.Environ(), noRaceSleep)
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // ProcessState has it
		close(p.exited)
	}()
	t.Cleanup(func() {
		if p.Client != nil { // else it hasn't come so far
			p.Client.CloseIdleConnections()
		}
		p.terminate(t)
		p.requireExit(t)
	})
	p.Service = servertest.NewService(t, servertest.AwaitGreeting(t, p.log), nil)
	return p
}

// terminate sends SIGTERM unless the process has exited.
func (p *process) terminate(t testing.TB) {
	select {
	case <-p.exited:
	default:
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	}
}

// kill ends the process at once.
func (p *process) kill() {
	p.killed = true
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// requireExit waits until the process has exited, with 0 unless it was killed.
func (p *process) requireExit(t testing.TB) {
	select {
	case <-p.exited:
		require.Truef(t, p.killed || p.cmd.ProcessState.Success(), "%v\n%s", p.cmd.ProcessState, p.log)
	case <-time.After(servertest.Patience):
		_ = p.cmd.Process.Kill()
		<-p.exited
		require.Failf(t, "the process doesn't exit", "%s", p.log)
	}
}

// keysOfClients returns the keys of a server without those that instances leave for each
// other.
func keysOfClients(m *memcachedtest.Server) []string {
	return slices.DeleteFunc(m.Keys(), func(key string) bool { return strings.HasPrefix(key, "weir:instance") })
}

var reportCommand = regexp.MustCompile(`(?:set|add|cas) weir:instance\S* 0 \d+ (\d+)(?: \d+)?\r\n`)

// withoutReports returns what was sent to a server without what instances leave for each
// other, whose data is behind its length.
func withoutReports(sent string) string {
	for {
		at := reportCommand.FindStringSubmatchIndex(sent)
		if at == nil {
			return sent
		}
		n, _ := strconv.Atoi(sent[at[2]:at[3]])
		sent = sent[:at[0]] + sent[min(len(sent), at[1]+n+len("\r\n")):]
	}
}
