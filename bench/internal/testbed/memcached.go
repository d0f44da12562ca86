package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Memcached is a memcached process of the bench's own, and a connection to
// it.
type Memcached struct {
	*Process
	*MemcachedConn
	command func(addr string) *exec.Cmd
}

// StartMemcached starts memcached on a free port with so many MiB for items.
func StartMemcached(ctx context.Context, megabytes int) (*Memcached, error) {
	path, err := exec.LookPath("memcached")
	if err != nil {
		return nil, fmt.Errorf("the bench needs memcached, such as apt-get install memcached gives: %w", err)
	}
	m := &Memcached{command: func(addr string) *exec.Cmd {
		host, port, _ := net.SplitHostPort(addr)
		args := []string{"-l", host, "-p", port, "-m", strconv.Itoa(megabytes)}
		if os.Geteuid() == 0 {
			args = append(args, "-u", "nobody")
		}
		return exec.Command(path, args...)
	}}
	for range 5 { // others look for free ports too
		if m.Process, err = startOnFreePort(ctx, m.command); err != nil {
			continue
		}
		if err = m.connect(ctx); err == nil {
			return m, nil
		}
	}
	return nil, err
}

// connect ends the process if it can't be connected to, or if it is another
// that listens at its address.
func (m *Memcached) connect(ctx context.Context) (err error) {
	if m.MemcachedConn, err = DialMemcached(ctx, m.Addr); err != nil {
		m.Process.Stop()
		return err
	}
	stats, err := m.Do("stats", "END")
	if err == nil && !slices.Contains(stats, fmt.Sprintf("STAT pid %d", m.Process.Cmd.Process.Pid)) {
		err = fmt.Errorf("another memcached listens at %s", m.Addr)
	}
	if err != nil {
		m.Stop()
	}
	return err
}

// Restart starts memcached again after Stop, empty, at the same address.
func (m *Memcached) Restart(ctx context.Context) (err error) {
	p, err := startProcess(ctx, m.Addr, m.command(m.Addr))
	if err != nil {
		return err
	}
	m.Process = p
	return m.connect(ctx)
}

// StartOn starts weir on a memcached of its own, with so many MiB for items.
func (b *Build) StartOn(ctx context.Context, megabytes int, args ...string) (m *Memcached, weir *Process, stop func(), err error) {
	if m, err = StartMemcached(ctx, megabytes); err != nil {
		return nil, nil, nil, err
	}
	if weir, err = b.Start(ctx, m.Addr, args...); err != nil {
		m.Stop()
		return nil, nil, nil, err
	}
	return m, weir, func() {
		weir.Stop()
		m.Stop()
	}, nil
}

// MemcachedVersion returns the version that rows are measured on; "" if there is
// none to start.
func MemcachedVersion(ctx context.Context) string {
	out, _ := exec.CommandContext(ctx, "memcached", "-V").Output()
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "memcached ")
}

// Stop closes the connection and ends the process.
func (m *Memcached) Stop() {
	m.Conn.Close()
	m.Process.Stop()
}

// KeysPerGet returns how many keys a get command asks for while run runs; 0
// when there is none. Memcached's stats don't count get commands, so it is told
// to log every command meanwhile, which makes it slow.
func (m *Memcached) KeysPerGet(ctx context.Context, run func() error) (float64, error) {
	const loud, silence = "verbosity 2", "verbosity 0" // which is logged last
	before := len(m.Log.String())
	did, err := m.During(func() error {
		_, err1 := m.Do(loud, "OK")
		err2 := run()
		_, err3 := m.Do(silence, "OK")
		return errors.Join(err1, err2, err3)
	})
	if err != nil {
		return 0, err
	}
	var logged string
	err = Poll(ctx, startTimeout, time.Millisecond, func() (bool, error) {
		logged = m.Log.String()[before:]
		return strings.Contains(logged, " "+silence), nil
	})
	gets := len(getCommand.FindAllString(logged, -1))
	if gets == 0 || err != nil {
		return 0, err
	}
	return float64(did.KeysRead) / float64(gets), nil
}

// getCommand is a get command in the log, 24 being the connection: "<24 gets a
// b". It may stand anywhere in a line, because memcached's threads write keys
// into the log letter by letter and interrupt each other.
var getCommand = regexp.MustCompile(`<\d+ (get|gets|mg) `)

// holdings are what memcached keeps.
type holdings struct{ Items, Bytes float64 }

// Held returns the items that memcached keeps and the bytes of the chunks that
// they are in.
func (m *Memcached) Held() (holdings, error) {
	stats, err := m.numbers("stats slabs")
	return parseSlabs(stats), err
}

func parseSlabs(stats map[string]float64) (h holdings) {
	for name, n := range stats {
		if class, ok := strings.CutSuffix(name, ":used_chunks"); ok {
			h.Items += n
			h.Bytes += n * stats[class+":chunk_size"]
		}
	}
	return h
}

// StoreCost is what a check costs memcached.
type StoreCost struct {
	Writes   float64 `json:"writes"`    // add, set, cas, incr, decr and delete commands per check
	KeysRead float64 `json:"keys_read"` // per check
}

// Per returns the cost of each of so many checks.
func (s StoreStats) Per(checks int64) StoreCost {
	return StoreCost{Writes: float64(s.Writes) / float64(checks), KeysRead: float64(s.KeysRead) / float64(checks)}
}

// String returns both, to one digit.
func (c StoreCost) String() string { return fmt.Sprintf("%.1f + %.1f", c.Writes, c.KeysRead) }

// A MemcachedConn is a connection to a memcached. It is not safe for concurrent
// use.
type MemcachedConn struct {
	Conn net.Conn
	r    *bufio.Reader
}

// DialMemcached connects to a host:port.
func DialMemcached(ctx context.Context, addr string) (*MemcachedConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &MemcachedConn{conn, bufio.NewReader(conn)}, nil
}

// Do sends a line of the text protocol and returns the lines of the answer, up
// to and including the one that begins with last.
func (m *MemcachedConn) Do(line string, last ...string) ([]string, error) {
	if err := m.Conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(m.Conn, "%s\r\n", line); err != nil {
		return nil, err
	}
	var lines []string
	for {
		answer, err := m.r.ReadString('\n')
		if err != nil {
			return lines, fmt.Errorf("memcached's answer to %q: %w", line, err)
		}
		lines = append(lines, strings.TrimRight(answer, "\r\n"))
		if slices.ContainsFunc(last, func(prefix string) bool { return strings.HasPrefix(answer, prefix) }) {
			return lines, nil
		}
		if strings.HasPrefix(answer, "ERROR") {
			return lines, fmt.Errorf("memcached doesn't know %q", line)
		}
	}
}

// StoreStats are counts of memcached's own, since it started.
type StoreStats struct {
	// Writes are commands that change something: add, set, cas, incr, decr and
	// delete, with or without success.
	Writes int64
	// KeysRead are the keys asked for, in whatever number of get commands.
	KeysRead  int64
	Evictions int64
}

// stats returns the counts.
func (m *MemcachedConn) stats() (StoreStats, error) {
	stats, err := m.numbers("stats")
	if err != nil {
		return StoreStats{}, err
	}
	return parseStats(stats)
}

func parseStats(stats map[string]float64) (s StoreStats, err error) {
	sum := func(names ...string) (sum int64) {
		for _, name := range names {
			n, ok := stats[name]
			if !ok {
				err = fmt.Errorf("memcached's stats have no number %s", name)
			}
			sum += int64(n)
		}
		return sum
	}
	// cmd_set counts add and cas too, also those that stored nothing.
	s.Writes = sum("cmd_set", "incr_hits", "incr_misses", "decr_hits", "decr_misses", "delete_hits", "delete_misses")
	s.KeysRead, s.Evictions = sum("get_hits", "get_misses"), sum("evictions")
	return s, err
}

// numbers returns memcached's answer to a stats command, without what isn't a number.
func (m *MemcachedConn) numbers(command string) (map[string]float64, error) {
	lines, err := m.Do(command, "END")
	stats := make(map[string]float64)
	for _, line := range lines {
		name, value, _ := strings.Cut(strings.TrimPrefix(line, "STAT "), " ")
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			stats[name] = n
		}
	}
	return stats, err
}

// During returns what memcached did while f ran.
func (m *MemcachedConn) During(f func() error) (StoreStats, error) {
	before, err := m.stats()
	if err != nil {
		return StoreStats{}, err
	}
	if err := f(); err != nil {
		return StoreStats{}, err
	}
	after, err := m.stats()
	return after.minus(before), err
}

// Plus returns the sum.
func (s StoreStats) Plus(o StoreStats) StoreStats {
	return StoreStats{s.Writes + o.Writes, s.KeysRead + o.KeysRead, s.Evictions + o.Evictions}
}

// minus returns the difference.
func (s StoreStats) minus(o StoreStats) StoreStats {
	return StoreStats{s.Writes - o.Writes, s.KeysRead - o.KeysRead, s.Evictions - o.Evictions}
}
