package throughput

import (
	"bufio"
	"fmt"
	"time"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/loadgen"
	"weir/bench/internal/testbed"
	"weir/counters"
)

// mostFilled is how many clients a row of ten seconds comes to at 30,000 checks a
// second; the slots of others are empty.
const mostFilled = 300_000

// fill gives every client of the row that its checks come to a count of 1 in each
// of the last window's closed slots, so that reading a window costs what it costs
// for a client that has been busy for as long. Who is denied has used up a limit.
func fill(m *testbed.Memcached, w loadgen.Workload, now time.Time) error {
	slots := int64(w.Algorithm.Slots)
	if slots == 0 || w.Limit != loadgen.Never {
		return nil
	}
	width := w.Algorithm.Width(algorithms.Window)
	current := counters.Calendar(now, width).Number
	namespace := algorithms.Namespace(w.Policy(), width)
	ttl := int(counters.TTL(algorithms.Window+width, 0) / time.Second)
	if err := m.Conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	out := bufio.NewWriterSize(m.Conn, 1<<16)
	for n := range min(w.Clients, mostFilled) {
		client := namespace.Client(loadgen.ClientName(n))
		for slot := int64(1); slot <= slots; slot++ {
			fmt.Fprintf(out, "set %s 0 %d 1 noreply\r\n1\r\n", counters.CounterKey(client, current-slot), ttl)
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := m.Do("version", "VERSION") // is answered when all is stored
	return err
}
