package memcached

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"weir/counters/memcachedtest"
)

// BenchmarkFirstTouch compares what Memcached takes of a processor to count in a
// slot that begins: by add and incr, or by the meta command ma, which makes the
// counter too; alone, and with the read of the other keys of a window of ten
// slots that a client whom the process doesn't know takes.
func BenchmarkFirstTouch(b *testing.B) {
	const piece = 50 // touches go out together
	for _, read := range []int{0, 11} {
		for _, way := range []struct {
			name, command string
			lines         int // of its replies
		}{
			{"add+incr", "add %[1]s_%[2]d 0 90 1\r\n0\r\nincr %[1]s_%[2]d 1\r\n", 2},
			{"ma", "ma %[1]s_%[2]d N90 J1 v\r\n", 2},
		} {
			b.Run(fmt.Sprintf("%s/read=%d", way.name, read), func(b *testing.B) {
				// It neither evicts nor grows its hash table meanwhile.
				server := memcachedtest.Start(b, "-m", "1024", "-o", "hashpower=22")
				conn, err := net.Dial(server.Network(), server.Addr)
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
				r := bufio.NewReaderSize(conn, 64<<10)
				const client = "weir:default/sliding-window:6000:10.1.2."
				clients := 0
				var requests []byte
				cpu := processorTime(b, server)
				for b.Loop() {
					requests = requests[:0]
					lines := piece * way.lines
					for range piece {
						clients++
						name := fmt.Sprintf("%s%s%d", client, way.name, clients*16+read)
						requests = fmt.Appendf(requests, way.command, name, 28_000_000)
						if read > 0 {
							requests = append(requests, "get"...)
							for i := range read {
								requests = fmt.Appendf(requests, " %s_%d", name, 27_999_999-i)
							}
							requests = append(requests, "\r\n"...)
							lines++
						}
					}
					if _, err := conn.Write(requests); err != nil {
						b.Fatal(err)
					}
					for range lines {
						line, err := r.ReadSlice('\n')
						if err != nil || strings.Contains(string(line), "ERROR") {
							b.Fatal(err, string(line))
						}
					}
				}
				b.ReportMetric((processorTime(b, server)-cpu)*1e9/float64(b.N*piece), "server-ns/touch")
			})
		}
	}
}

// processorTime returns the seconds that the server has used.
func processorTime(b *testing.B, server *memcachedtest.Server) float64 {
	b.Helper()
	var total float64
	for _, line := range server.Do("stats", "END") {
		name, value, _ := strings.Cut(strings.TrimPrefix(line, "STAT "), " ")
		if name != "rusage_user" && name != "rusage_system" {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			b.Fatal(err)
		}
		total += n
	}
	return total
}
