package faults

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
)

// A directory answers config get cluster, as hosted Memcached services do.
type directory struct {
	addr     string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	version int
	members []string // host:port
	conns   []net.Conn
}

func startDirectory(members []string) (*directory, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &directory{addr: l.Addr().String(), listener: l}
	d.set(members)
	d.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // it was stopped
			}
			d.mu.Lock()
			d.conns = append(d.conns, conn)
			d.mu.Unlock()
			d.running.Go(func() { d.serve(conn) })
		}
	})
	return d, nil
}

// set replaces the members.
func (d *directory) set(members []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.version++
	d.members = members
}

func (d *directory) stop() {
	d.listener.Close()
	d.mu.Lock()
	for _, c := range d.conns {
		c.Close()
	}
	d.mu.Unlock()
	d.running.Wait()
}

func (d *directory) serve(conn net.Conn) {
	defer conn.Close()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		reply := "ERROR\r\n"
		if lines.Text() == "config get cluster" {
			reply = d.config()
		}
		if _, err := conn.Write([]byte(reply)); err != nil {
			return
		}
	}
}

// config returns the reply: a version, and the members with their names and
// addresses.
func (d *directory) config() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var members []string
	for _, m := range d.members {
		host, port, _ := net.SplitHostPort(m)
		members = append(members, host+"|"+host+"|"+port)
	}
	text := fmt.Sprintf("%d\n%s\n", d.version, strings.Join(members, " "))
	return fmt.Sprintf("CONFIG cluster 0 %d\r\n%s\r\nEND\r\n", len(text), text)
}
