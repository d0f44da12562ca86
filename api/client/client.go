// Package client asks weir whether a client may do something now, and puts
// weir in front of HTTP handlers.
//
// A Client puts the checks of concurrent callers together into one request, so
// that many callers cost little more than one; a lone caller waits for nobody.
// It remembers denials until their Retry-After, so that a client that is denied
// and goes on asking costs no request. Each call ends within Config.Timeout. If
// weir can't be asked by then, Config.FailOpen says what the answer is.
//
// Middleware and Admit ask for each request of a handler, a Client or any other
// Limiter. The package weirecho has the same for echo.
//
// The package needs nothing but the standard library. Start with New and Check.
package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
)

// Defaults of a Config.
const (
	DefaultTimeout = 250 * time.Millisecond
	DefaultDenials = 10_000
)

const (
	idleConnections = 64               // are kept open
	idleTime        = 90 * time.Second // for so long; weir keeps them for longer
	connectTime     = 10 * time.Second // longer than the call: a connection that comes late serves the next
	writeBuffer     = 16 << 10         // bytes: a batch of smallBatch ordinary checks is written in one piece
)

// Config configures a Client. Only URL is needed.
type Config struct {
	// URL is where weir listens, such as http://127.0.0.1:8080.
	URL string
	// Token is a bearer token of weir's -token-file; "" means none.
	Token string
	// Timeout bounds each call, beside its context; 0 means DefaultTimeout. It
	// should be longer than three times weir's -store-timeout: what comes in a
	// batch, as all checks of a Client do, may wait for two when weir is busy.
	Timeout time.Duration
	// FailOpen admits what weir couldn't be asked about in time, or what failed
	// inside it or a proxy before it. The default denies. What weir refuses is denied in any case: a
	// wrong check, or one that on_store_error: deny refuses.
	FailOpen bool
	// Denials is the number of clients whose denials are remembered, in about
	// half a kilobyte each; 0 means DefaultDenials, and a negative number none.
	// Policies with count_denied need none: what is answered from memory doesn't
	// count, so clients that keep hammering wouldn't stay blocked.
	Denials int
	// Transport sends the requests, for TLS of your own; nil means one that
	// reuses connections. One of your own must do so too: set
	// http.Transport.MaxIdleConnsPerHost. If it speaks HTTP/2, set
	// http.HTTP2Config.SendPingTimeout, which finds dead connections.
	Transport http.RoundTripper
}

// A Client asks a weir service. Make one with New, and only one for all
// callers: the zero Client isn't usable. It is safe for concurrent use.
type Client struct {
	url, token string
	timeout    time.Duration
	failOpen   bool
	http       http.Client
	own        *http.Transport // nil if the caller has given one
	batcher    *batcher
	settler    settler
	denials    *denials
	now        func() time.Time
}

// New returns a client. It doesn't connect yet. The error says what is wrong
// with cfg.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("client: URL %q must be like http://127.0.0.1:8080", cfg.URL)
	}
	if strings.ContainsFunc(cfg.Token, unicode.IsControl) { // no header may have it, so weir would never be asked
		return nil, errors.New("client: Token has a line end or another control character; trim what was read from a file")
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("client: Timeout %v must be positive", cfg.Timeout)
	}
	c := &Client{
		url: strings.TrimRight(cfg.URL, "/"), token: cfg.Token,
		timeout:  cmp.Or(cfg.Timeout, DefaultTimeout),
		failOpen: cfg.FailOpen,
		http:     http.Client{Transport: cfg.Transport},
		denials:  &denials{most: cmp.Or(cfg.Denials, DefaultDenials), clients: make(map[clientKey]*deniedClient)},
		now:      time.Now,
	}
	if cfg.Transport == nil {
		c.own = newTransport()
		c.http.Transport = c.own
	}
	c.batcher = newBatcher(c.checkBatch, c.timeout)
	c.settler.batcher = newBatcher(c.settleBatch, c.timeout)
	c.settler.open, c.settler.end = context.WithCancel(context.Background())
	c.batcher.unread = func(r *reply) { c.settler.giveBack(r, c.now()) }
	return c, nil
}

// newTransport returns one that reuses connections. It doesn't speak HTTP/2:
// there a request that is given up leaves its connection behind, and the next
// one would be sent on it although it is dead.
func newTransport() *http.Transport {
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	return &http.Transport{
		Proxy:       http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{Timeout: connectTime}).DialContext, TLSHandshakeTimeout: connectTime,
		MaxIdleConnsPerHost: idleConnections, IdleConnTimeout: idleTime,
		DisableCompression: true, Protocols: http1, WriteBufferSize: writeBuffer,
	}
}

// Close tries once more to settle what Settle couldn't, and closes the connections that
// nobody uses. It may take Config.Timeout twice. Nothing may be settled after it.
func (c *Client) Close() {
	c.settler.close()
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// Check decides q and, if it is admitted, consumes its cost. It asks weir at
// most once: a check that got no answer may have been counted.
//
// An error means that there is no decision, and the answer says what to do
// then: it allows if Config.FailOpen says so and weir couldn't be asked. It
// never allows what weir refused, which is a *Problem, and what the caller
// canceled: else hanging up early would get round a limit.
func (c *Client) Check(ctx context.Context, q Check) (Answer, error) {
	one := c.batcher.begin()
	one.settles = q.Settle
	var err error
	if one.check, err = q.encode(one.check); err != nil {
		return Answer{}, err
	}
	key, sent := clientKey{q.Policy, q.Client}, c.now()
	a, denied := c.denials.find(key, one.check, sent)
	if !denied {
		if err = c.batcher.do(ctx, one); err != nil {
			return c.undecided(err)
		}
		a, err = c.conclude(key, one, sent)
	}
	c.batcher.end(one)
	return a, err
}

// A Result is the outcome of one of many checks: what Check would return.
type Result struct {
	Answer
	Err error
}

// CheckMany decides checks and returns their results in the same order. One
// that can't be decided doesn't keep the others from being decided.
//
// Checks of one client of one policy are made in their order, others side by
// side, in requests of at most 1000 checks, one after the other. Timeout
// bounds all of them together. Unlike those of Check, places that weir admits to
// after that aren't given back, and are free a lease later.
func (c *Client) CheckMany(ctx context.Context, checks []Check) []Result {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	results := make([]Result, len(checks))
	var asked []int // indexes of those for weir
	var calls []*call
	size := 0
	ask := func() {
		if len(asked) == 0 {
			return
		}
		sent := c.now()
		err := c.checkBatch(ctx, calls)
		for j, i := range asked {
			if r := &results[i]; err != nil {
				r.Answer, r.Err = c.undecided(err)
			} else {
				r.Answer, r.Err = c.conclude(clientKey{checks[i].Policy, checks[i].Client}, calls[j], sent)
			}
		}
		asked, calls, size = asked[:0], calls[:0], 0
	}
	for i := range checks {
		q := &checks[i]
		check, err := q.encode(nil)
		if err != nil {
			results[i].Err = err
			continue
		}
		if len(asked) == maxBatch || size+len(check)+1 > maxBatchBytes {
			ask()
		}
		if a, ok := c.denials.find(clientKey{q.Policy, q.Client}, check, c.now()); ok {
			results[i].Answer = a
			continue
		}
		asked, calls, size = append(asked, i), append(calls, &call{check: check, settles: q.Settle}), size+len(check)+1
	}
	ask()
	return results
}

// CheckAll decides checks as one, at most 1000: all are admitted, or none has
// consumed anything. The answer's RetryAfter and Wait are the largest of theirs.
// It has no Limits; those of the results, which are in the order of the checks,
// say which of them deny. It always asks weir. An error is as in Check; it is
// that of the first check that can't be made. Places that weir admits to after
// Timeout are free a lease later, as those of CheckMany are.
func (c *Client) CheckAll(ctx context.Context, checks []Check) (Answer, []Answer, error) {
	calls := make([]*call, len(checks))
	for i := range checks {
		check, err := checks[i].encode(nil)
		if err != nil {
			return Answer{}, nil, err
		}
		calls[i] = &call{check: check}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	sent := c.now()
	r, err := c.sendBatch(ctx, checksOf, calls, `],"all":true}`, http.StatusTooManyRequests)
	if err != nil {
		all, err := c.undecided(err)
		return all, nil, err
	}
	results := make([]Answer, len(checks))
	for i := range results {
		results[i], _ = calls[i].reply.answer() // with all, there are no problems
		if receipt := &results[i].Receipt; receipt.Text != "" {
			receipt.Until = sent.Add(receipt.within)
		}
	}
	return r.Answer, results, nil
}

// Peek returns what a check of cost 1 would be answered now, and consumes
// nothing. It always asks weir. The error is a *Problem, or says why weir couldn't
// be asked or understood; then there is no answer.
func (c *Client) Peek(ctx context.Context, policy, client string) (Answer, error) {
	r, err := c.askClient(ctx, http.MethodGet, policy, client, http.StatusOK)
	return r.Answer, err
}

// Reset lets a client start fresh in all limits of the policy, on every
// instance of weir within a second, or as soon as its store is back; until then in the
// instance that was asked. Its denials are forgotten here at once;
// other Clients remember theirs for at most a minute. After an error it may or
// may not have been reset: do it again.
func (c *Client) Reset(ctx context.Context, policy, client string) error {
	_, err := c.askClient(ctx, http.MethodDelete, policy, client, http.StatusNoContent, http.StatusAccepted)
	c.denials.reset(clientKey{policy, client}, c.now())
	return err
}

// conclude returns the outcome of a check that was sent and answered, and remembers it if
// that is of use.
func (c *Client) conclude(key clientKey, one *call, sent time.Time) (Answer, error) {
	a, err := one.reply.answer()
	if err != nil {
		return c.undecided(err)
	}
	if !a.Allowed && !one.settles { // else what others give back may make room at any moment
		c.denials.remember(key, one.check, a, sent, c.now())
	}
	if a.Receipt.Text != "" {
		a.Receipt.Until = sent.Add(a.Receipt.within)
	}
	return a, nil
}

// undecided returns the answer to what couldn't be decided because of err.
func (c *Client) undecided(err error) (Answer, error) {
	var p *Problem
	if !c.failOpen || errors.Is(err, context.Canceled) || errors.As(err, &p) && p.refuses() {
		return Answer{}, err
	}
	return Answer{Allowed: true, Degraded: true}, err
}

// checkBatch gets the replies to checks.
func (c *Client) checkBatch(ctx context.Context, checks []*call) error {
	_, err := c.sendBatch(ctx, checksOf, checks, `]}`)
	return err
}

// settleBatch gets the replies to settlements.
func (c *Client) settleBatch(ctx context.Context, settlements []*call) error {
	_, err := c.sendBatch(ctx, settlementsOf, settlements, `]}`)
	return err
}

// A batchOf is what comes in a batch, and where that goes.
type batchOf struct{ path, begin string }

var (
	checksOf      = batchOf{"/v1/check/batch", `{"checks":[`}
	settlementsOf = batchOf{"/v1/settle/batch", `{"settlements":[`}
)

// answers are buffers for the answers to batches.
var answers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxKeptAnswer is the size of the largest buffer that is used again, in bytes:
// of a batch of ordinary checks.
const maxKeptAnswer = 512 << 10

func release(answer *bytes.Buffer) {
	if answer.Cap() <= maxKeptAnswer {
		answer.Reset()
		answers.Put(answer)
	}
}

// sendBatch gets the replies to calls, and returns that to all of them. The body
// ends with end. It takes the statuses besides 200.
func (c *Client) sendBatch(ctx context.Context, of batchOf, calls []*call, end string, statuses ...int) (reply, error) {
	size := len(of.begin) + len(end)
	for _, one := range calls {
		size += len(one.check) + 1
	}
	body := append(make([]byte, 0, size), of.begin...)
	replies := make([]*reply, len(calls))
	for i, one := range calls {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, one.check...)
		replies[i] = &one.reply
	}
	body = append(body, end...)
	answer := answers.Get().(*bytes.Buffer)
	defer release(answer)
	if err := c.ask(ctx, http.MethodPost, of.path, body, answer, append(statuses, http.StatusOK)...); err != nil {
		return reply{}, err
	}
	r, results, err := decode(answer.Bytes(), replies)
	if err != nil {
		return reply{}, unreadable(err)
	}
	if results != len(calls) {
		return reply{}, fmt.Errorf("client: weir answers %d of %d", results, len(calls))
	}
	return r, nil
}

func unreadable(err error) error {
	return fmt.Errorf("client: what answers isn't weir: %w", err)
}

func (c *Client) askClient(ctx context.Context, method, policy, client string, statuses ...int) (reply, error) {
	if err := validateClient(client); err != nil {
		return reply{}, err
	}
	return c.askOne(ctx, method, "/v1/policies/"+url.PathEscape(policy)+"/clients/"+url.PathEscape(client), nil, statuses...)
}

// askOne is ask for one reply, which a reset hasn't, within the timeout.
func (c *Client) askOne(ctx context.Context, method, path string, body []byte, statuses ...int) (r reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var answer bytes.Buffer
	if err = c.ask(ctx, method, path, body, &answer, statuses...); err == nil && method != http.MethodDelete {
		if r, _, err = decode(answer.Bytes(), nil); err == nil && r.policy == "" && r.Receipt.Text == "" {
			err = errors.New("it names no policy, and has no receipt")
		}
		if err != nil {
			r, err = reply{}, unreadable(err)
		}
	}
	return r, err
}

// ask reads the body of an answer of one of the statuses. Any other is a *Problem.
func (c *Client) ask(ctx context.Context, method, path string, body []byte, answer *bytes.Buffer, statuses ...int) error {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	defer response.Body.Close()
	if length := response.ContentLength; length > 0 {
		answer.Grow(int(min(length, maxKeptAnswer)) + bytes.MinRead)
	}
	if _, err := answer.ReadFrom(response.Body); err != nil {
		return fmt.Errorf("client: %w", err)
	}
	if slices.Contains(statuses, response.StatusCode) {
		return nil
	}
	// Perhaps a proxy's, and no problem details: the status is what counts.
	var p Problem
	if r, _, err := decode(answer.Bytes(), nil); err == nil {
		p = r.problem
	} else {
		p.Detail = string(answer.Next(200))
	}
	p.Status, p.Title = response.StatusCode, cmp.Or(p.Title, http.StatusText(response.StatusCode))
	return &p
}
