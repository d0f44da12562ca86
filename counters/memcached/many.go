package memcached

import (
	"context"
	"sync"
	"time"

	"weir/counters"
)

// AddMany implements counters.ManyStore. It has a connection of its own to each
// server, so that single operations don't queue behind it.
func (s *Store) AddMany(ctx context.Context, keys []string, begin func(i int) (counters.Addition, counters.Turn), done func(i int, n int64, err error)) {
	m := s.members.Load()
	if len(m.clients) == 0 {
		for i := range keys {
			done(i, 0, errNoServers)
		}
		return
	}
	many := many{deadline: deadline(ctx), begin: begin, done: done}
	shares := make([]share, len(m.clients))
	for i, key := range keys {
		share := &shares[m.ring.pick(key)]
		share.waiting = append(share.waiting, i)
	}
	for i := range shares {
		share := &shares[i]
		share.many, share.home = &many, m.clients[i]
		if len(share.waiting) == len(keys) {
			share.run()
		} else if len(share.waiting) > 0 {
			many.adding.Go(share.run)
		}
	}
	many.adding.Wait()
	if many.cause != nil {
		panic(many.cause)
	}
}

// many is one AddMany.
type many struct {
	deadline time.Time
	begin    func(i int) (counters.Addition, counters.Turn)
	done     func(i int, n int64, err error)
	adding   sync.WaitGroup // goroutines of shares

	panicked sync.Once
	cause    any
}

// rescue keeps a panic for the goroutine of AddMany's caller.
func (m *many) rescue() {
	if cause := recover(); cause != nil {
		m.panicked.Do(func() { m.cause = cause })
	}
}

// A share is the additions for one server.
type share struct {
	*many
	home *clients

	mu      sync.Mutex
	waiting []int // the numbers of those that haven't begun
	later   []int // and of those whose turn comes after that
	adders  int   // how many may still be begun
	adding  sync.WaitGroup
}

// A piece is additions that are sent together.
type piece struct {
	numbers   []int
	additions []counters.Addition
}

var pieces = sync.Pool{New: func() any { return new(piece) }}

// run sends all that waits, and then what could only come later: after about as
// long as others have pieces under way.
func (s *share) run() {
	for {
		s.adders = s.home.budget.pieces() - 1
		s.add()
		s.adding.Wait()
		if len(s.later) == 0 {
			return
		}
		left := time.Until(s.deadline)
		s.waiting, s.later = s.later, s.waiting[:0]
		if left <= 0 {
			s.leave(errOverdue)
			return
		}
		time.Sleep(min(s.home.budget.pause(), left))
	}
}

// add sends pieces, one after the other, until nothing waits. As long as it
// isn't the last that may, it has another do so beside it.
func (s *share) add() {
	defer s.rescue()
	p := pieces.Get().(*piece)
	for s.waits() {
		c, alone, err := s.enter()
		if c == nil {
			s.leave(err)
			break
		}
		s.send(c, p, alone)
	}
	pieces.Put(p)
}

// waits reports whether there is more to send.
func (s *share) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting) > 0
}

// enter returns a client for a piece, once another may be under way, and whether
// none is. If it returns none, the error says what becomes of all that wait.
func (s *share) enter() (c *client, alone bool, err error) {
	cs := s.home
	ok, alone := cs.budget.take(s.deadline)
	if !ok {
		return nil, false, errOverdue
	}
	if cs.breaker.suspect.Load() {
		err = cs.refuse(s.deadline)
	}
	if err == nil {
		if c = cs.getFrom(&cs.bulk, s.deadline); c == nil {
			err = counters.ErrNotAdded // the server has left
		}
	}
	if err != nil {
		cs.budget.give(maxPiece)
	}
	return c, alone, err
}

// leave ends all that wait with err.
func (s *share) leave(err error) {
	s.mu.Lock()
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	for _, i := range waiting {
		s.done(i, 0, err)
	}
}

// send does the additions of the next piece with c, while others are under way or
// not.
func (s *share) send(c *client, p *piece, alone bool) {
	defer c.release()
	failure := s.exchange(c, p, alone)
	if failure != nil {
		failure = c.translate("", failure)
	}
	unanswered := c.unansweredTogether(failure)
	first := 0
	for j, i := range p.numbers {
		a := &p.additions[j]
		incr := first + incrNumber(*a)
		first = incr + 1
		if len(a.Read) > 0 {
			first++
		}
		if failure != nil {
			s.done(i, 0, unanswered(incr))
			continue
		}
		n, found, err := c.parseAddition(*a, incr)
		switch {
		case err != nil:
			s.done(i, n, c.translate(a.Key, err))
		case found:
			s.done(i, n, nil)
		case a.Have:
			s.done(i, 0, counters.ErrLost)
		default: // it is gone as soon as it was made
			s.done(i, 0, counters.ErrNotAdded)
		}
	}
	clear(p.additions)
}

// exchange makes p the next piece, sends it, and waits for its replies. Then
// others may be under way.
func (s *share) exchange(c *client, p *piece, alone bool) error {
	budget, taken := &s.home.budget, maxPiece
	defer func() { budget.give(taken) }()
	requests := s.next(c.requests[:0], p)
	if len(p.numbers) == 0 {
		return nil
	}
	budget.give(maxPiece - len(requests)) // less than nothing if the last is a large one
	taken = len(requests)
	begun := time.Now()
	err := c.exchange(0, requests)
	if err == nil {
		budget.measured(time.Since(begun), alone)
	}
	return err
}

// next makes p the next piece, and appends its requests to b.
func (s *share) next(b []byte, p *piece) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.numbers, p.additions = p.numbers[:0], p.additions[:0]
	for len(s.waiting) > 0 && len(b) < maxPiece {
		i := s.waiting[0]
		s.waiting = s.waiting[1:]
		switch a, turn := s.begin(i); turn {
		case counters.Now:
			b = appendAddition(b, a)
			p.numbers, p.additions = append(p.numbers, i), append(p.additions, a)
		case counters.Later:
			s.later = append(s.later, i)
		}
	}
	if len(s.waiting) > 0 && s.adders > 0 {
		s.adders--
		s.adding.Go(s.add)
	}
	return b
}

// unansweredTogether is unanswered for the additions of a piece that has failed
// with err. It returns the error of the one whose incr has the given number.
func (c *client) unansweredTogether(err error) func(incr int) error {
	if !c.outstanding(err) {
		return func(int) error { return err }
	}
	conn, home := c.broken, c.home
	all := &counters.Unanswered{Err: err, Await: func(f func(err error)) {
		home.late(conn, func(ctx context.Context, err error) {
			if err == nil {
				home.awaitBreaker(ctx)
			}
			f(err)
		})
	}}
	told := &told{home: home}
	return func(incr int) error {
		return &counters.Unanswered{Err: err, Await: func(f func(err error)) {
			all.Later(func(err error) {
				if err == nil && !counted(conn.Reply(incr)) {
					err = counters.ErrNotSent
				}
				if err != nil {
					f(err)
				} else {
					told.tell(f)
				}
			})
		}}
	}
}

// maxTold is how many are told at once that their addition was counted late.
const maxTold = 16

// told tells those whose additions were counted late, which takes them time:
// they may take them back.
type told struct {
	home *clients

	mu      sync.Mutex
	waiting []func(err error)
	telling int
}

func (t *told) tell(f func(err error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting = append(t.waiting, f)
	if t.telling == maxTold {
		return
	}
	t.telling++
	if !t.home.many.Go(func(context.Context) { t.tellAll() }) {
		t.home.run(t.tellAll)
	}
}

func (t *told) tellAll() {
	for {
		t.mu.Lock()
		if len(t.waiting) == 0 {
			t.telling--
			t.mu.Unlock()
			return
		}
		f := t.waiting[0]
		t.waiting = t.waiting[1:]
		t.mu.Unlock()
		f(nil)
	}
}
