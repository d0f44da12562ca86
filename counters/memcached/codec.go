package memcached

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/counters"
)

// maxRelativeTTL is the longest TTL that Memcached takes as relative; a larger
// number is a Unix time.
const maxRelativeTTL = 30 * 24 * time.Hour

// Below is the part of Memcached's text protocol that sessions use: all but set,
// which is gomemcache's.

var crlf = []byte("\r\n")

// appendStore appends add, or cas when version isn't 0.
func appendStore(b []byte, key string, expiration int32, version uint64, value []byte) []byte {
	verb := "add "
	if version != 0 {
		verb = "cas "
	}
	b = append(append(append(b, verb...), key...), " 0 "...)
	b = append(strconv.AppendInt(b, int64(expiration), 10), ' ')
	b = strconv.AppendInt(b, int64(len(value)), 10)
	if version != 0 {
		b = strconv.AppendUint(append(b, ' '), version, 10)
	}
	b = append(append(b, crlf...), value...)
	return append(b, crlf...)
}

// appendCount appends incr or decr.
func appendCount(b []byte, verb, key string, delta int64) []byte {
	b = append(append(append(append(b, verb...), ' '), key...), ' ')
	return append(strconv.AppendInt(b, delta, 10), crlf...)
}

// appendGet appends get or gets.
func appendGet(b []byte, verb string, keys ...string) []byte {
	b = append(b, verb...)
	for _, key := range keys {
		b = append(append(b, ' '), key...)
	}
	return append(b, crlf...)
}

// maxGet bounds a get in bytes. Memcached takes longer ones; hosted ones and proxies
// refuse them.
const maxGet = 16 << 10

// oneGet returns how many of the keys, of which there are some, one get asks for.
func oneGet(keys []string) int {
	size := len("gets") + len(crlf)
	for i, key := range keys {
		if size += 1 + len(key); size > maxGet && i > 0 {
			return i
		}
	}
	return len(keys)
}

// appendGets appends get or gets for any number of keys, as few as oneGet allows.
func appendGets(b []byte, verb string, keys []string) []byte {
	for len(keys) > 0 {
		n := oneGet(keys)
		b, keys = appendGet(b, verb, keys[:n]...), keys[n:]
	}
	return b
}

func appendDelete(b []byte, key string) []byte {
	return append(append(append(b, "delete "...), key...), crlf...)
}

// parseCount returns the number that incr or decr answered for key, if there is
// a counter.
func parseCount(key string, reply []byte) (n int64, found bool, err error) {
	switch string(reply) {
	case "NOT_FOUND\r\n":
		return 0, false, nil
	case "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n":
		return 0, false, foreignValue(key)
	}
	line := bytes.TrimSuffix(reply, crlf)
	u, err := parseUint(line)
	if err != nil {
		return 0, false, changeError(line)
	}
	if u > math.MaxInt64 {
		return 0, true, foreignValue(key)
	}
	return int64(u), true, nil
}

// parseItems calls found for each item that a get of keys[first:] answered, with the
// index of its key in keys.
func parseItems(reply []byte, keys []string, first int, found func(i int, value []byte, version uint64) error) error {
	for i := first; string(reply) != "END\r\n"; i++ {
		key, value, version, rest, err := cutValue(reply)
		if err != nil {
			return err
		}
		for i < len(keys) && keys[i] != string(key) { // items come in the order of the keys
			i++
		}
		if i == len(keys) {
			return fmt.Errorf("memcache: the reply to a get has the key %q, which is out of turn", key)
		}
		if err := found(i, value, version); err != nil {
			return err
		}
		reply = rest
	}
	return nil
}

// foreign stands in counts for a value that isn't a counter.
const foreign = counters.Absent - 1

// intoCounts returns what puts items, which are counters or foreign, into counts. One that
// isn't there is counters.Absent. The versions, which only gets answers, go into versions
// unless that is empty.
func intoCounts(counts []int64, versions []uint64) func(i int, value []byte, version uint64) error {
	for i := range counts {
		counts[i] = counters.Absent
	}
	return func(i int, value []byte, version uint64) error {
		// decr leaves trailing spaces when a number gets shorter.
		n, err := parseUint(bytes.TrimRight(value, " "))
		if counts[i] = int64(n); err != nil || n > math.MaxInt64 {
			counts[i] = foreign
		}
		if len(versions) > 0 {
			versions[i] = version
		}
		return nil
	}
}

// checkCounts returns an error if one of the counts at keys is foreign.
func checkCounts(keys []string, counts []int64) error {
	if i := slices.Index(counts, foreign); i >= 0 {
		return foreignValue(keys[i])
	}
	return nil
}

// intoStates returns what puts items into states, which have no life then.
func intoStates(states []counters.State) func(i int, value []byte, version uint64) error {
	clear(states)
	return func(i int, value []byte, version uint64) error {
		if version == 0 {
			return errNoCAS
		}
		states[i] = counters.State{Value: bytes.Clone(value), Version: version}
		return nil
	}
}

// cutValue returns the first item of a reply to get or gets, and what follows
// it. version is 0 when the reply has none.
func cutValue(reply []byte) (key, value []byte, version uint64, rest []byte, err error) {
	line, rest, _ := bytes.Cut(reply, crlf)
	args, ok := bytes.CutPrefix(line, []byte("VALUE "))
	key, args, _ = bytes.Cut(args, []byte(" "))
	_, args, _ = bytes.Cut(args, []byte(" ")) // flags
	length, unique, gets := bytes.Cut(args, []byte(" "))
	size, err := strconv.ParseUint(string(length), 10, 32)
	if gets && err == nil {
		version, err = parseUint(unique)
	}
	if !ok || err != nil || uint64(len(rest)) < size+uint64(len(crlf)) || !bytes.HasPrefix(rest[size:], crlf) {
		return nil, nil, 0, nil, replyError(line)
	}
	return key, rest[:size], version, rest[size+uint64(len(crlf)):], nil
}

// checkVersion returns an error unless a reply is one to version.
func checkVersion(reply []byte) error {
	if !bytes.HasPrefix(reply, []byte("VERSION ")) {
		return replyError(reply)
	}
	return nil
}

// parseStats returns what stats answered now.
func parseStats(reply []byte, now time.Time) (counters.ServerStats, error) {
	var s counters.ServerStats
	clock := now.Unix()
	for line := range bytes.Lines(reply) {
		name, number, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(string(line), "STAT "), "\r\n"), " ")
		field := map[string]*int64{"curr_items": &s.Items, "bytes": &s.Bytes, "evictions": &s.Evictions, "time": &clock}[name]
		if field == nil {
			continue
		}
		var err error
		if *field, err = strconv.ParseInt(number, 10, 64); err != nil {
			return s, replyError(line)
		}
	}
	if !bytes.HasSuffix(reply, []byte("END\r\n")) {
		return s, replyError(reply)
	}
	s.Ahead = ahead(now, time.Unix(clock, 0))
	return s, nil
}

// A Memcached server's time may be that far before or behind its machine's clock. It is the
// whole second of its start and the whole seconds of another clock since then, which a timer
// counts that is up to a second late.
const serverBefore, serverBehind = time.Second, 3 * time.Second

// ahead returns by how much now is ahead of a server's clock at least, or behind it if that
// is negative, as its time tells.
func ahead(now, server time.Time) time.Duration {
	return min(0, now.Sub(server)+serverBefore) + max(0, now.Sub(server)-serverBehind)
}

func parseUint(b []byte) (uint64, error) { return strconv.ParseUint(string(b), 10, 64) }

// expiration returns ttl as Memcached wants it: in whole seconds, rounded up,
// and as a Unix time when it is longer than 30 days.
func expiration(ttl time.Duration) int32 {
	if ttl <= maxRelativeTTL {
		return int32((ttl + time.Second - 1) / time.Second)
	}
	return int32(min(time.Now().Add(ttl+time.Second-1).Unix(), math.MaxInt32))
}
