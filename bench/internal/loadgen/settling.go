package loadgen

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
)

const settlePath = "/v1/settle"

// A settling connection settles what each check has reserved before it makes the next one:
// its answer is that to the settlement.
type settling struct {
	*httpConnection
	head, tail string // of the settlement's request: up to the length of its body, and behind the receipt
	request    []byte
}

// Reserving is Check of a cost that is to be settled.
func Reserving(policy string, cost int64) Request {
	r := Check(policy, 0)
	r.Body = fmt.Sprintf(`%s,"cost":%d,"settle":true}`, strings.TrimSuffix(r.Body, "}"), cost)
	r.Right = func(body []byte) bool { return bytes.Contains(body, []byte(`"settled":true,"already":false`)) }
	return r
}

// DialSettling is Dial for what is Reserving, which is settled then. What follows the receipt
// in the settlement is either `,"cost":` with the cost, or nothing if it is as reserved.
func DialSettling(ctx context.Context, addr string, r Request, cost string, n int) (Connections, error) {
	all, err := Dial(ctx, addr, r, n)
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: ", settlePath, addr)
	for i, c := range all {
		all[i] = &settling{httpConnection: c.(*httpConnection), head: head, tail: `"` + cost + "}"}
	}
	return all, err
}

// Receive implements Connection.
func (s *settling) Receive() (status int, body []byte, err error) {
	if status, body, err = s.httpConnection.Receive(); err != nil {
		return status, body, err
	}
	_, rest, _ := bytes.Cut(body, []byte(`"receipt":"`))
	receipt, _, ok := bytes.Cut(rest, []byte(`"`))
	if !ok {
		return status, body, fmt.Errorf("status %d without a receipt: %s", status, readable(body))
	}
	const begin = `{"receipt":"`
	s.request = strconv.AppendInt(append(s.request[:0], s.head...), int64(len(begin)+len(receipt)+len(s.tail)), 10)
	s.request = append(append(append(s.request, "\r\n\r\n"+begin...), receipt...), s.tail...)
	if _, err = s.conn.Write(s.request); err != nil {
		return 0, nil, err
	}
	return s.httpConnection.Receive()
}
