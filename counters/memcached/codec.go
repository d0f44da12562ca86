package memcached

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"weir/counters"
)

// maxRelativeTTL is the longest TTL that Memcached takes as relative; a larger
// number is a Unix time.
const maxRelativeTTL = 30 * 24 * time.Hour

// Below is the part of Memcached's text protocol that pipelines use; gomemcache
// has no pipelines.

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

func appendIncr(b []byte, key string, delta int64) []byte {
	b = append(append(append(b, "incr "...), key...), ' ')
	return append(strconv.AppendInt(b, delta, 10), crlf...)
}

func appendDecr(b []byte, key string, delta int64) []byte {
	b = append(append(append(b, "decr "...), key...), ' ')
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

// appendGets appends get or gets for any number of keys, of which getCount is the
// number.
func appendGets(b []byte, verb string, keys []string) []byte {
	for len(keys) > 0 {
		n := oneGet(keys)
		b, keys = appendGet(b, verb, keys[:n]...), keys[n:]
	}
	return b
}

func getCount(keys []string) (count int) {
	for ; len(keys) > 0; count++ {
		keys = keys[oneGet(keys):]
	}
	return count
}

func appendDelete(b []byte, key string) []byte {
	return append(append(append(b, "delete "...), key...), crlf...)
}

// parseIncr returns the number that incr, or decr, answered for key, if there is
// a counter.
func parseIncr(key string, reply []byte) (n int64, found bool, err error) {
	switch string(reply) {
	case "NOT_FOUND\r\n":
		return 0, false, nil
	case replyNonNumeric:
		return 0, false, foreignValue(key)
	}
	line := bytes.TrimSuffix(reply, crlf)
	u, err := parseUint(line)
	if err != nil {
		return 0, false, refused(line)
	}
	n, err = counterValue(key, u)
	return n, true, err
}

// parseCounts puts the counters that a get of keys answered into counts; one
// that isn't there is counters.Absent. The versions, which only gets answers,
// go into versions unless that is empty.
func parseCounts(reply []byte, keys []string, counts []int64, versions []uint64) error {
	for i := range counts {
		counts[i] = counters.Absent
	}
	size := len(counts)
	for string(reply) != "END\r\n" {
		key, value, version, rest, err := cutValue(reply)
		if err != nil {
			return err
		}
		// Values come in the order of the keys.
		for len(keys) > 0 && keys[0] != string(key) {
			keys, counts = keys[1:], counts[1:]
		}
		if len(keys) == 0 {
			return fmt.Errorf("memcache: the reply to a get has the key %q, which is out of turn", key)
		}
		// decr leaves trailing spaces when a number gets shorter.
		n, err := parseUint(bytes.TrimRight(value, " "))
		if err != nil {
			return foreignValue(keys[0])
		}
		if counts[0], err = counterValue(keys[0], n); err != nil {
			return err
		}
		if len(versions) > 0 {
			versions[size-len(counts)] = version
		}
		keys, counts, reply = keys[1:], counts[1:], rest
	}
	return nil
}

// parseState returns what a gets of one key answered.
func parseState(reply []byte) (counters.State, error) {
	if string(reply) == "END\r\n" {
		return counters.State{}, nil
	}
	_, value, version, rest, err := cutValue(reply)
	if err == nil && string(rest) != "END\r\n" {
		err = replyError(rest)
	}
	if err != nil {
		return counters.State{}, err
	}
	if version == 0 {
		return counters.State{}, errNoCAS
	}
	return counters.State{Value: bytes.Clone(value), Version: version}, nil
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

// tick is how far a Memcached server's time may be behind its clock: it counts whole
// seconds, once a second.
const tick = 2 * time.Second

// ahead returns by how much now is ahead of a server's clock at least, or behind it if that
// is negative, as its time tells.
func ahead(now, server time.Time) time.Duration {
	return min(0, now.Sub(server)) + max(0, now.Sub(server)-tick)
}

func parseUint(b []byte) (uint64, error) { return strconv.ParseUint(string(b), 10, 64) }

func counterValue(key string, n uint64) (int64, error) {
	if n > math.MaxInt64 {
		return 0, foreignValue(key)
	}
	return int64(n), nil
}

// expiration returns ttl as Memcached wants it: in whole seconds, rounded up,
// and as a Unix time when it is longer than 30 days.
func expiration(ttl time.Duration, now time.Time) int32 {
	if ttl <= maxRelativeTTL {
		return int32((ttl + time.Second - 1) / time.Second)
	}
	return int32(min(now.Add(ttl+time.Second-1).Unix(), math.MaxInt32))
}
