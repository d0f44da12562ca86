package counters

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// maxKeyPrefixBytes keeps every key within Memcached's 250 bytes: names of
	// 63 bytes, a width of 11 digits, a client of maxPlainClient bytes and a
	// slot of 14 digits leave 30.
	maxKeyPrefixBytes = 30

	// MaxNameBytes is the longest name that CheckName accepts.
	MaxNameBytes = 63

	maxPlainClient = 64
	// hashedClientBytes of SHA-256 are kept: 144 bits, which base64url writes
	// in 24 characters without padding.
	hashedClientBytes = 18
)

// CheckKeyPrefix returns an error that says what a key prefix may be when
// prefix is not one: 1 to 30 bytes of printable ASCII without
// space, and no / after a :, as that would look like the names of a limit.
func CheckKeyPrefix(prefix string) error {
	if prefix == "" || len(prefix) > maxKeyPrefixBytes || !printable(prefix) {
		return fmt.Errorf("key prefix %q must be 1 to %d printable ASCII characters without space", prefix, maxKeyPrefixBytes)
	}
	if _, rest, _ := strings.Cut(prefix, ":"); strings.Contains(rest, "/") {
		return fmt.Errorf("key prefix %q must have no / after a colon", prefix)
	}
	return nil
}

// A Namespace is the constant beginning of all keys of one limit, such as
// "weir:api/per-minute:60000:". A counter's key is
//
//	<prefix>:<policy>/<limit>:<slot width in ms>:<client>_<slot>
//
// where the slot is its number since 1970. It expires when the slot has left
// every window. The state of a token or leaky bucket, or of a log, is one item,
//
//	<prefix>:<policy>/<limit>:<algorithm>:<client>
//
// which expires when it would be the initial state again. How a client stands
// there, so that none can forge, break or meet another's key, is with StateKey.
type Namespace string

// CounterNamespace returns the namespace of the counters of one limit, whose
// slots are width wide (whole milliseconds).
func CounterNamespace(prefix, policy, limit string, width time.Duration) Namespace {
	return Namespace(prefix + ":" + policy + "/" + limit + ":" + strconv.FormatInt(width.Milliseconds(), 10) + ":")
}

// StateNamespace returns the namespace of the states of one limit. The
// algorithm doesn't begin with a digit, as the width of counters does.
func StateNamespace(prefix, policy, limit, algorithm string) Namespace {
	return Namespace(prefix + ":" + policy + "/" + limit + ":" + algorithm + ":")
}

// Client returns the beginning of the keys of one client's counters: the key of
// a counter is this and the number of its slot.
func (n Namespace) Client(client string) string {
	var b [128]byte
	return string(append(n.AppendStateKey(b[:0], client), '_'))
}

// StateKey returns the key of one client's state. A client that is short
// printable ASCII stands in the key as it is, unless it has braces or "|#|", which
// mcrouter and Memcached's proxy take for the part of a key that chooses its server.
// Any other is replaced by "~" and a hash, which cannot be mistaken for a plain client
// because those do not begin with "~".
func (n Namespace) StateKey(client string) string {
	var b [128]byte // longer keys cost another allocation
	return string(n.AppendStateKey(b[:0], client))
}

// AppendStateKey appends to b what StateKey returns.
func (n Namespace) AppendStateKey(b []byte, client string) []byte {
	b = append(b, n...)
	if len(client) <= maxPlainClient && !strings.HasPrefix(client, "~") && printable(client) &&
		!strings.ContainsAny(client, "{}") && !strings.Contains(client, "|#|") {
		return append(b, client...)
	}
	sum := sha256.Sum256([]byte(client))
	return base64.RawURLEncoding.AppendEncode(append(b, '~'), sum[:hashedClientBytes])
}

// CounterKey returns the key of the counter of the slot with that number, given what
// Namespace.Client returned. The last "_" of a key always ends the client, so
// that client "a_1" never meets client "a".
func CounterKey(beginning string, slot int64) string {
	var b [128]byte
	return string(AppendCounterKey(b[:0], beginning, slot))
}

// AppendCounterKey appends to b what CounterKey returns.
func AppendCounterKey(b []byte, beginning string, slot int64) []byte {
	return strconv.AppendInt(append(b, beginning...), slot, 10)
}

// GenerationKey returns the key of the counter that each reset of a client raises, as
// does whoever changes what others have read and rely on, given what Namespace.Client
// returned.
func GenerationKey(beginning string) string { return beginning + generationSuffix }

// AppendGenerationKey appends to b what GenerationKey returns.
func AppendGenerationKey(b []byte, beginning string) []byte {
	return append(append(b, beginning...), generationSuffix...)
}

const generationSuffix = "reset"

// ClientPart returns the part of a key that names its client, so that all keys
// of a client are kept by one server. The key is one that Namespace.Client
// began or Namespace.StateKey returned, with any key prefix that CheckKeyPrefix
// accepts; any other string is returned whole.
func ClientPart(key string) string {
	_, rest, _ := strings.Cut(key, ":") // the prefix, or its beginning
	_, rest, _ = strings.Cut(rest, "/") // the policy
	_, rest, _ = strings.Cut(rest, ":") // the limit
	width, rest, ok := strings.Cut(rest, ":")
	if !ok {
		return key
	}
	if width == "" || width[0] < '0' || width[0] > '9' {
		return rest // a state has no slot
	}
	end := strings.LastIndexByte(rest, '_')
	if end < 0 {
		return key
	}
	return rest[:end]
}

// CheckName returns an error that says what a name of a policy or a limit may
// be when name is not one: 1 to 63 of a-z, 0-9 and -, and no - at the
// beginning.
func CheckName(name string) error {
	if name == "" || len(name) > MaxNameBytes || name[0] == '-' || strings.Trim(name, nameCharacters) != "" {
		return fmt.Errorf("name %q must be 1 to %d of a-z, 0-9 and -, and not begin with -", name, MaxNameBytes)
	}
	return nil
}

const nameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-"

func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
