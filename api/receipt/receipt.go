// Package receipt writes what a check has reserved into a text that its caller gives
// back when it settles the cost, so that no instance needs to remember it. A text is
// proof that an instance with the same Key wrote it: anything else is an error.
package receipt

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash"
	"slices"
	"sync"
	"time"
)

// A Receipt is what a check has reserved.
type Receipt struct {
	Policy, Client string
	// Issued is the Now of the check, and Nonce tells its receipt from all others.
	Issued time.Time
	Nonce  uint64
	// Until is when it can be settled last. A text has it rounded up to whole seconds.
	Until  time.Time
	Cost   int64
	Limits []Limit // that have counted the cost
}

// A Limit is what one limit has counted.
type Limit struct {
	// Name is the hash of what the limit is, by which it is found again.
	Name uint32
	// Alone says that the store wasn't asked: nobody knows when it was told.
	Alone bool
	// Value is the limit that was in force, and the rest what the limiter answered: see
	// counters.Decision and counters.Receipt.
	Value, Remaining, Generation, Position int64
}

// ErrInvalid says that a text is no receipt of this key.
var ErrInvalid = errors.New("receipt: not written by this service, or changed")

// A Key is a secret that receipts are written with. It is safe for concurrent use. Make one
// with NewKey.
type Key struct{ macs sync.Pool } // of *mac

// A mac writes codes of a key: making one hashes the key twice. It is reused.
type mac struct {
	hash.Hash
	sum    [sha256.Size]byte
	data   []byte // of a receipt
	policy string // of a receipt before, most likely that of the next one too
}

// NewKey returns the key of a service that has secrets, in any order. All its instances
// have the same, also without any.
func NewKey(secrets []string) *Key {
	h := sha256.New()
	h.Write([]byte("weir receipt"))
	for _, secret := range slices.Compact(slices.Sorted(slices.Values(secrets))) {
		h.Write(binary.AppendUvarint(nil, uint64(len(secret))))
		h.Write([]byte(secret))
	}
	secret := h.Sum(nil)
	return &Key{sync.Pool{New: func() any { return &mac{Hash: hmac.New(sha256.New, secret)} }}}
}

const (
	// prefix names the version of the format.
	prefix = "w1."
	// macBytes of an HMAC-SHA256 end a receipt: 128 bits.
	macBytes = 16
	// maxBytes bounds a receipt: of a client of counters.MaxClientBytes, and ten limits.
	maxBytes = 2 << 10
	// limitBytes is the most that a limit takes, and otherBytes the most of all else but the
	// names of policy and client.
	limitBytes = 4 + 6 + 6 + 2*binary.MaxVarintLen64
	otherBytes = 8 + 8 + binary.MaxVarintLen64 + 5 + 2*2 + macBytes
)

// Room returns for how many limits a receipt has room at least, of a policy and a client.
func Room(policy, client string) int {
	return (base64.RawURLEncoding.DecodedLen(maxBytes-len(prefix)) - otherBytes - len(policy) - len(client)) / limitBytes
}

// Append appends r as a text of letters, digits, "-", "_" and ".". It reports whether r
// fits into the 2 KiB that a receipt may have; else b is returned as it is.
func (k *Key) Append(b []byte, r *Receipt) (_ []byte, fits bool) {
	m := k.macs.Get().(*mac)
	defer k.macs.Put(m)
	data := binary.BigEndian.AppendUint64(m.data[:0], uint64(r.Issued.UnixNano()))
	data = binary.BigEndian.AppendUint64(data, r.Nonce)
	data = binary.AppendVarint(data, r.Until.Add(time.Second-1).Unix())
	data = binary.AppendUvarint(data, uint64(r.Cost))
	data = appendString(data, r.Policy)
	data = appendString(data, r.Client)
	for _, l := range r.Limits {
		data = binary.BigEndian.AppendUint32(data, l.Name)
		alone := uint64(0)
		if l.Alone {
			alone = 1
		}
		data = binary.AppendUvarint(data, uint64(l.Value)<<1|alone)
		data = binary.AppendUvarint(data, uint64(l.Remaining))
		data = binary.AppendVarint(data, l.Generation)
		data = binary.AppendUvarint(data, uint64(l.Position))
	}
	data = append(data, m.code(data)...)
	m.data = data
	if len(prefix)+base64.RawURLEncoding.EncodedLen(len(data)) > maxBytes {
		return b, false
	}
	return appendEncoded(b, data), true
}

func appendEncoded(b, data []byte) []byte {
	return encoding.AppendEncode(append(b, prefix...), data)
}

var encoding = base64.RawURLEncoding.Strict()

// Open returns what text says. The error is ErrInvalid.
func (k *Key) Open(text []byte) (r Receipt, err error) {
	encoded, ok := bytes.CutPrefix(text, []byte(prefix))
	if !ok || len(text) > maxBytes {
		return r, ErrInvalid
	}
	m := k.macs.Get().(*mac)
	defer k.macs.Put(m)
	data, err := encoding.AppendDecode(m.data[:0], encoded)
	m.data = data
	if err != nil || len(data) < macBytes || encoding.EncodedLen(len(data)) != len(encoded) { // decoding passes over line ends
		return r, ErrInvalid
	}
	data, code := data[:len(data)-macBytes], data[len(data)-macBytes:]
	if !hmac.Equal(code, m.code(data)) {
		return r, ErrInvalid
	}
	d := decoder{data: data}
	r.Issued = time.Unix(0, int64(d.fixed(8)))
	r.Nonce = d.fixed(8)
	r.Until = time.Unix(d.signed(), 0)
	r.Cost = int64(d.unsigned())
	if policy := d.text(); string(policy) != m.policy {
		m.policy = string(policy)
	}
	r.Policy, r.Client = m.policy, string(d.text())
	for len(d.data) > 0 && !d.short {
		l := Limit{Name: uint32(d.fixed(4))}
		value := d.unsigned()
		l.Value, l.Alone = int64(value>>1), value&1 == 1
		l.Remaining, l.Generation, l.Position = int64(d.unsigned()), d.signed(), int64(d.unsigned())
		r.Limits = append(r.Limits, l)
	}
	if d.short { // of another version that has the same key
		return Receipt{}, ErrInvalid
	}
	return r, nil
}

// code returns the code of data, until the next.
func (m *mac) code(data []byte) []byte {
	m.Reset()
	m.Write(data)
	return m.Sum(m.sum[:0])[:macBytes]
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// A decoder reads values from the beginning of data.
type decoder struct {
	data  []byte
	short bool // there were too few
}

func (d *decoder) next(n int) []byte {
	if n < 0 || n > len(d.data) {
		d.short = true
		return nil
	}
	read := d.data[:n]
	d.data = d.data[n:]
	return read
}

// fixed reads a number of so many bytes.
func (d *decoder) fixed(n int) (v uint64) {
	for _, b := range d.next(n) {
		v = v<<8 | uint64(b)
	}
	return v
}

func (d *decoder) unsigned() uint64 {
	v, n := binary.Uvarint(d.data)
	d.next(cmp.Or(n, -1)) // 0 is that of too few bytes
	return v
}

func (d *decoder) signed() int64 {
	v, n := binary.Varint(d.data)
	d.next(cmp.Or(n, -1))
	return v
}

func (d *decoder) text() []byte { return d.next(int(min(d.unsigned(), maxBytes))) }
