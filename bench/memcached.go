package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir/counters"
)

// A memcached is a memcached process of the bench's own, and a connection to
// it.
type memcached struct {
	*server
	*memcachedConn
	log *commandLog
}

// A memcachedConn is a connection to a memcached. It is not safe for concurrent
// use.
type memcachedConn struct {
	conn net.Conn
	r    *bufio.Reader
}

// dialMemcached connects to a host:port, or to a socket's path.
func dialMemcached(ctx context.Context, addr string) (*memcachedConn, error) {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &memcachedConn{conn, bufio.NewReader(conn)}, nil
}

// startMemcached starts memcached on a free port with so many MiB for items.
func startMemcached(ctx context.Context, megabytes int) (*memcached, error) {
	path, err := exec.LookPath("memcached")
	if err != nil {
		return nil, fmt.Errorf("the bench needs memcached, such as apt-get install memcached gives: %w", err)
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	args := []string{"-l", "127.0.0.1", "-p", port, "-m", strconv.Itoa(megabytes)}
	if os.Geteuid() == 0 {
		args = append(args, "-u", "nobody")
	}
	m := &memcached{log: &commandLog{silenced: make(chan struct{}, 1)}}
	cmd := exec.Command(path, args...)
	cmd.Stderr = m.log
	if m.server, err = startServer(ctx, addr, cmd, m.log); err != nil {
		return nil, err
	}
	if m.memcachedConn, err = dialMemcached(ctx, addr); err != nil {
		m.server.stop()
		return nil, err
	}
	return m, nil
}

// memcachedVersion returns the version that rows are measured on.
func memcachedVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "memcached", "-V").Output()
	if err != nil {
		return "", fmt.Errorf("the bench needs memcached, such as apt-get install memcached gives: %w", err)
	}
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "memcached "), nil
}

func (m *memcached) stop() {
	m.conn.Close()
	m.server.stop()
}

// do sends a line of the text protocol and returns the lines of the answer, up
// to and including the one that begins with last.
func (m *memcachedConn) do(line string, last ...string) ([]string, error) {
	if err := m.conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(m.conn, "%s\r\n", line); err != nil {
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

// storeStats are counts of memcached's own, since it started.
type storeStats struct {
	// writes are commands that change something: add, set, cas, incr, decr and
	// delete, with or without success.
	writes int64
	// keysRead are the keys asked for, in whatever number of get commands.
	keysRead  int64
	evictions int64
}

func (m *memcachedConn) stats() (storeStats, error) {
	lines, err := m.do("stats", "END")
	if err != nil {
		return storeStats{}, err
	}
	return parseStats(lines)
}

func parseStats(lines []string) (storeStats, error) {
	var s storeStats
	for _, line := range lines {
		name, value, _ := strings.Cut(strings.TrimPrefix(line, "STAT "), " ")
		var into *int64
		switch name {
		// cmd_set counts add and cas too, also those that stored nothing.
		case "cmd_set", "incr_hits", "incr_misses", "decr_hits", "decr_misses", "delete_hits", "delete_misses":
			into = &s.writes
		case "get_hits", "get_misses":
			into = &s.keysRead
		case "evictions":
			into = &s.evictions
		default:
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return s, fmt.Errorf("memcached's stats: %w", err)
		}
		*into += n
	}
	return s, nil
}

func (s storeStats) plus(o storeStats) storeStats {
	return storeStats{s.writes + o.writes, s.keysRead + o.keysRead, s.evictions + o.evictions}
}

func (s storeStats) minus(o storeStats) storeStats {
	return storeStats{s.writes - o.writes, s.keysRead - o.keysRead, s.evictions - o.evictions}
}

// keysPerGet returns how many keys a get command asks for while run runs; 0
// when there is none. Memcached's stats don't count get commands, so it is told
// to log every command meanwhile, which makes it slow.
func (m *memcached) keysPerGet(run func() error) (float64, error) {
	before, err := m.stats()
	if err != nil {
		return 0, err
	}
	m.log.reset()
	if _, err := m.do("verbosity 2", "OK"); err != nil {
		return 0, err
	}
	if err := run(); err != nil {
		return 0, err
	}
	if _, err := m.do(silence, "OK"); err != nil {
		return 0, err
	}
	select {
	case <-m.log.silenced:
	case <-m.exited:
		return 0, fmt.Errorf("memcached ended: %s", m.log)
	}
	after, err := m.stats()
	if err != nil {
		return 0, err
	}
	gets := m.log.reset()
	if gets == 0 {
		return 0, nil
	}
	return float64(after.minus(before).keysRead) / float64(gets), nil
}

// silence ends the logging of commands, and is the last that is logged.
const silence = "verbosity 0"

// A commandLog reads what memcached logs and counts its get commands. It is
// safe for concurrent use.
type commandLog struct {
	silenced chan struct{} // told when silence was logged

	mu      sync.Mutex
	partial []byte // line
	last    string // complaint
	gets    int64
}

// Write takes more of the log. It returns no error.
func (l *commandLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, p...)
	rest := l.partial
	for {
		line, after, ok := bytes.Cut(rest, []byte("\n"))
		if !ok {
			break
		}
		l.line(line)
		rest = after
	}
	l.partial = append(l.partial[:0], rest...)
	return len(p), nil
}

// getCommand is a get command in the log, 24 being the connection: "<24 gets a
// b". It may stand anywhere in a line, because memcached's threads write keys
// into the log letter by letter and interrupt each other.
var getCommand = regexp.MustCompile(`<\d+ (get|gets|mg) `)

// line takes a line. The caller holds mu.
func (l *commandLog) line(line []byte) {
	l.gets += int64(len(getCommand.FindAllIndex(line, -1)))
	switch {
	case bytes.Contains(line, []byte(" "+silence)):
		l.silenced <- struct{}{}
	case len(line) > 0 && line[0] != '<' && line[0] != '>':
		l.last = string(line)
	}
}

// reset returns the number of get commands since the last reset.
func (l *commandLog) reset() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	gets := l.gets
	l.gets = 0
	return gets
}

// String returns memcached's last complaint.
func (l *commandLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// fill gives every client of the row a count of 1 in each of the last window's
// closed slots, so that reading a window costs what it costs for a client that
// has been busy for as long.
func (m *memcached) fill(w workload, now time.Time) error {
	if w.subWindows == 0 {
		return nil
	}
	width := window / time.Duration(w.subWindows)
	current := counters.Calendar(now, width).Number
	namespace := counters.CounterNamespace(keyPrefix, w.policy(), limitName, width)
	ttl := int(counters.TTL(window+width, 0) / time.Second)
	if err := m.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	out := bufio.NewWriterSize(m.conn, 1<<16)
	for n := range w.clients {
		client := namespace.Client(clientName(n))
		for slot := int64(1); slot <= w.subWindows; slot++ {
			fmt.Fprintf(out, "set %s 0 %d 1 noreply\r\n1\r\n", counters.CounterKey(client, current-slot), ttl)
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := m.do("version", "VERSION") // is answered when all is stored
	return err
}
