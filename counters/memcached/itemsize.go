package memcached

// ItemBytes returns how much of its memory Memcached 1.6 takes for an item
// whose key and value have so many bytes: an item of up to 512 KB is in a chunk
// of the smallest size that holds it, and unless Memcached is told otherwise
// each size is 1.25 times the one before.
func ItemBytes(key, value int) int {
	const (
		header   = 48 + 8 // with the number for compare-and-swap
		smallest = 96
		factor   = 1.25
		align    = 8
	)
	size := header + key + 1 + value + len(crlf) // the key ends with a zero
	chunk := smallest
	for chunk < size {
		chunk = (int(factor*float64(chunk)) + align - 1) / align * align
	}
	return chunk
}
