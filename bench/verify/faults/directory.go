package faults

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"weir/bench/internal/testbed"
)

// A directory answers config get cluster, as hosted Memcached services do.
type directory struct {
	*testbed.Listener
	mu      sync.Mutex
	version int
	members []string // host:port
}

func startDirectory(members []string) (d *directory, err error) {
	d = new(directory)
	d.set(members)
	d.Listener, err = testbed.Listen(func(_ *testbed.Listener, conn net.Conn) {
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			reply := "ERROR\r\n"
			if lines.Text() == "config get cluster" {
				reply = d.config()
			}
			if _, err := io.WriteString(conn, reply); err != nil {
				return
			}
		}
	})
	return d, err
}

// set replaces the members.
func (d *directory) set(members []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.version++
	d.members = members
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
