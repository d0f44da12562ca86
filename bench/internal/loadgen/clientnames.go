package loadgen

import "fmt"

const (
	clientPrefix = "client-"
	clientDigits = 8
)

// ClientName returns the name of the client with number n. All have the same length.
func ClientName(n int64) string { return fmt.Sprintf("%s%0*d", clientPrefix, clientDigits, n) }

// putDigits writes n with leading zeros.
func putDigits(digits []byte, n int64) {
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = byte('0' + n%10)
		n /= 10
	}
}
