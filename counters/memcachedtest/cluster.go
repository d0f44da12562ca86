package memcachedtest

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Cluster answers the command "config get cluster" as the endpoint of a
// hosted cluster does.
type Cluster struct {
	// Addr is host:port.
	Addr string

	mu      sync.Mutex
	servers []string
	version int
}

// StartCluster starts an endpoint that names these servers, host:port each, and
// stops it when the test ends.
func StartCluster(t testing.TB, servers ...string) *Cluster {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &Cluster{Addr: listener.Addr().String()}
	c.Set(servers...)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				for scan := bufio.NewScanner(conn); scan.Scan(); {
					fmt.Fprint(conn, c.answer(scan.Text()))
				}
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		running.Wait()
	})
	return c
}

// Set has the endpoint name other servers. With none it answers as a server
// that is in no cluster.
func (c *Cluster) Set(servers ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers = servers
	c.version++
}

// NodeName is the name under which the cluster has the server at addr. No DNS
// knows it.
func NodeName(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return "node-" + port + ".example:" + port
}

func (c *Cluster) answer(command string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if command != "config get cluster" || len(c.servers) == 0 {
		return "ERROR\r\n"
	}
	var nodes []string
	for _, addr := range c.servers {
		ip, port, _ := net.SplitHostPort(addr)
		nodes = append(nodes, strings.TrimSuffix(NodeName(addr), ":"+port)+"|"+ip+"|"+port)
	}
	text := fmt.Sprintf("%d\n%s\n", c.version, strings.Join(nodes, " "))
	return fmt.Sprintf("CONFIG cluster 0 %d\r\n%s\r\nEND\r\n", len(text), text)
}
