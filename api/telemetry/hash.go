package telemetry

import (
	"crypto/sha256"
	"encoding/hex"
)

// HashClient returns the first 16 digits of the client's SHA-256.
func HashClient(client string) string {
	sum := sha256.Sum256([]byte(client))
	return hex.EncodeToString(sum[:8])
}
