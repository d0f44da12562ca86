package memcached

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"weir/counters"
	"weir/counters/memcached/pipeline"
)

// appendAddition appends the commands of an addition, without those for what it reads. The
// last of them, whose number is incrNumber, does it.
func appendAddition(b []byte, a counters.Addition) []byte {
	if a.Delta < 0 {
		return appendCount(b, "decr", a.Key, -a.Delta)
	}
	if a.New {
		// The add's reply doesn't matter: if another caller added the counter first, it is
		// there too.
		b = appendStore(b, a.Key, expiration(a.TTL), 0, zero)
	}
	return appendCount(b, "incr", a.Key, a.Delta)
}

// parseAddition returns what was answered to an addition whose incr, or decr, was
// the command of the given number. found is false when there was no counter.
func (c *session) parseAddition(a counters.Addition, incr int) (n int64, found bool, err error) {
	n, found, err = parseCount(a.Key, c.conn.Reply(incr))
	if a.New && !found && err == nil {
		if add := c.conn.Reply(incr - 1); !bytes.HasSuffix(add, []byte("STORED\r\n")) {
			return 0, false, changeError(add)
		}
	}
	return n, found, err
}

var zero = []byte("0")

// incrNumber returns the number, from 0, of the incr or decr among the commands of an addition.
func incrNumber(a counters.Addition) int {
	if a.New {
		return 1
	}
	return 0
}

// counted reports whether a reply to incr is a count.
func counted(reply []byte) bool { return reply[0] >= '0' && reply[0] <= '9' }

// stored reports whether a reply to add or cas says that the value is stored.
func stored(reply []byte) bool { return string(reply) == "STORED\r\n" }

// parseGets is parseItems for the gets of any number of keys, the first of which was
// the command of the given number.
func (c *session) parseGets(number int, keys []string, found func(i int, value []byte, version uint64) error) error {
	for first := 0; first < len(keys); number++ {
		end := first + oneGet(keys[first:])
		if err := parseItems(c.conn.Reply(number), keys[:end], first, found); err != nil {
			return err
		}
		first = end
	}
	return nil
}

// parseCounts puts what gets of keys, as parseGets's, have answered into counts and versions.
// None may be foreign.
func (c *session) parseCounts(number int, keys []string, counts []int64, versions []uint64) error {
	return cmp.Or(c.parseGets(number, keys, intoCounts(counts, versions)), checkCounts(keys, counts))
}

// raise reads the counters of floors and replaces those that are less, in two
// round trips. It returns those that somebody changed in between.
func (c *session) raise(floors []counters.Floor) (again []counters.Floor, err error) {
	keys, counts, versions := make([]string, len(floors)), make([]int64, len(floors)), make([]uint64, len(floors))
	for i, f := range floors {
		keys[i] = f.Key
	}
	if err := c.exchange(0, appendGets(c.text[:0], "gets", keys)); err != nil {
		return nil, err
	}
	if err := c.parseCounts(0, keys, counts, versions); err != nil {
		return nil, err
	}
	b := c.text[:0]
	var low []counters.Floor
	for i, f := range floors {
		switch {
		case counts[i] >= f.Count:
			continue
		case counts[i] != counters.Absent && versions[i] == 0:
			return nil, errNoCAS
		}
		low = append(low, f)
		b = appendStore(b, f.Key, expiration(f.TTL), versions[i], strconv.AppendInt(nil, f.Count, 10))
	}
	if len(low) == 0 {
		return nil, nil
	}
	// A version belongs to the connection that it was read on.
	if err := c.exchange(c.conn.Socket(), b); errors.Is(err, pipeline.ErrOtherSocket) {
		return low, nil
	} else if err != nil {
		return nil, err
	}
	for i, f := range low {
		switch reply := c.conn.Reply(i); string(reply) {
		case "STORED\r\n":
		case "EXISTS\r\n", "NOT_FOUND\r\n", "NOT_STORED\r\n":
			again = append(again, f)
		default:
			return nil, replyError(reply)
		}
	}
	return again, nil
}

// delete deletes keys in one round trip. One that isn't there is no error.
func (c *session) delete(keys []string) error {
	b := c.text[:0]
	for _, key := range keys {
		b = appendDelete(b, key)
	}
	if err := c.exchange(0, b); err != nil {
		return err
	}
	for i := range keys {
		switch reply := c.conn.Reply(i); string(reply) {
		case "DELETED\r\n", "NOT_FOUND\r\n":
		default:
			return replyError(reply)
		}
	}
	return nil
}

// load reads the state at key.
func (c *session) load(key string) (counters.State, error) {
	if err := c.exchange(0, appendGet(c.text[:0], "gets", key)); err != nil {
		return counters.State{}, err
	}
	return c.state(0, key)
}

// lifeShift leaves the lower bits of a State's Life to the number of a socket:
// what was read may be replaced on each that was open by then, as long as it is.
// The upper ones are the server's, as a key may move to another.
const lifeShift = 40

// state returns the state at key, whose gets was the command of the given number.
func (c *session) state(number int, key string) (counters.State, error) {
	var s [1]counters.State
	err := c.parseStates(number, []string{key}, s[:])
	return s[0], err
}

// parseStates puts what gets of keys, as parseGets's, have answered into states.
func (c *session) parseStates(number int, keys []string, states []counters.State) error {
	err := c.parseGets(number, keys, intoStates(states))
	for i := range states {
		if s := &states[i]; s.Exists() {
			s.Life = c.backend.number<<lifeShift | max(c.newest, c.conn.Socket())
		}
	}
	return err
}

// socketOf returns the newest socket on which a state may be replaced that was
// read with that Life; 0 is any.
func socketOf(life uint64) uint64 { return life & (1<<lifeShift - 1) }

// swap stores value and loads what is there after that, in one round trip. It
// only loads when old was read on a connection that is lost, or on another
// server: this one may have given its version to another value.
func (c *session) swap(key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	err := pipeline.ErrOtherSocket
	if !old.Exists() || old.Life>>lifeShift == c.backend.number {
		b := appendStore(c.text[:0], key, expiration(ttl), old.Version, value)
		err = c.exchange(socketOf(old.Life), appendGet(b, "gets", key))
	}
	if errors.Is(err, pipeline.ErrOtherSocket) {
		now, err := c.load(key)
		if err != nil {
			err = fmt.Errorf("%w: %w", pipeline.ErrNotSent, err) // but for the load
		}
		return now, false, err
	}
	if err != nil {
		return counters.State{}, false, err
	}
	swapped, err := c.parseSwap(0)
	if err != nil {
		return counters.State{}, false, err
	}
	now, err := c.state(1, key)
	return now, swapped && err == nil, err
}

// parseSwap reports whether a swap was done whose add or cas was the command of the given
// number.
func (c *session) parseSwap(number int) (bool, error) {
	reply := c.conn.Reply(number)
	switch string(reply) {
	case "STORED\r\n", "EXISTS\r\n", "NOT_FOUND\r\n", "NOT_STORED\r\n": // or changed, gone, there already
		return stored(reply), nil
	default:
		return false, changeError(reply)
	}
}

// unanswered is translate, and makes an Unanswered of the error of a request whose reply may
// still come: one that was given up by its deadline, or with its silent connection. outcome
// says of a late reply, that to the command of the given number, what outcomeOf does.
func (c *session) unanswered(err error, number int, outcome func(reply []byte) error) error {
	translated := c.translate(err)
	late := errors.Is(translated, counters.ErrTimeout) || errors.Is(err, pipeline.ErrDown)
	if c.broken == nil || !late || errors.Is(translated, counters.ErrNotSent) {
		return translated
	}
	conn, backend := c.broken, c.backend
	return &counters.Unanswered{Err: translated, Await: func(f func(err error)) {
		backend.late(conn, func(ctx context.Context, err error) {
			if err == nil {
				err = outcome(conn.Reply(number))
			}
			if err == nil {
				backend.awaitBreaker(ctx)
			}
			f(err)
		})
	}}
}

// outcomeOf returns what a reply says of a command that counts or stores: nil if it was done,
// an ErrNotSent if it wasn't, and any other error if nobody knows.
func outcomeOf(reply []byte) error {
	if counted(reply) || stored(reply) {
		return nil
	}
	if err := changeError(reply); bytes.HasPrefix(reply, []byte("SERVER_ERROR ")) && !errors.Is(err, counters.ErrRefused) {
		return translate(err)
	}
	return counters.ErrNotSent
}
