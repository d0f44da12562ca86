package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// A kind is what has to be known of a command to find the end of its reply.
type kind uint8

const (
	lineCommand    kind = iota // answered by one line
	storageCommand             // carries a data block, answered by one line
	versionCommand             // answered by one line; like those that follow it changes nothing
	readCommand                // answered by VALUE blocks up to an END line
	statsCommand               // answered by STAT lines up to an END line
)

const (
	// maxKept is the largest buffer kept for the next use, in bytes.
	maxKept = 64 << 10
	maxKey  = 250
	maxData = 1 << 30 // the largest item size memcached can be set to
	// Memcached closes the connection, everyone's, on a longer line of anything
	// but get and gets.
	maxLine = 2048
)

// parseCommand looks for a whole command at the start of b and returns its
// length, or 0 when the rest is still to come. An error means that b could put
// the stream out of step and must not be sent.
func parseCommand(b []byte) (int, kind, error) {
	end := bytes.IndexByte(b, '\n') + 1
	if end == 0 {
		return 0, 0, nil
	}
	verb, args, _ := bytes.Cut(bytes.TrimSuffix(b[:end-1], []byte("\r")), []byte(" "))
	long := end > maxLine
	switch string(verb) {
	case "get", "gets":
		return end, readCommand, nil
	case "gat", "gats":
		if !long {
			return end, readCommand, nil
		}
	case "stats":
		if len(args) == 0 { // what others answer is of other forms
			return end, statsCommand, nil
		}
	case "version":
		if len(args) == 0 {
			return end, versionCommand, nil
		}
	case "incr", "decr", "delete", "touch", "flush_all":
		if !long && !bytes.HasSuffix(args, []byte("noreply")) {
			return end, lineCommand, nil
		}
	case "set", "add", "replace", "append", "prepend", "cas":
		fields := 4 // key, flags, expiry, length
		if string(verb) == "cas" {
			fields++
		}
		if size, ok := dataSize(args, fields); ok && !long {
			size += end + len("\r\n")
			if len(b) < size {
				return 0, 0, nil
			}
			if string(b[size-2:size]) == "\r\n" {
				return size, storageCommand, nil
			}
		}
	default:
		return 0, 0, fmt.Errorf("pipeline: command %q is not supported on a shared socket", verb)
	}
	return 0, 0, fmt.Errorf("pipeline: malformed %s command", verb)
}

// dataSize returns the length in the arguments of a storage command, which must
// be exactly n.
func dataSize(args []byte, n int) (int, bool) {
	key, rest, _ := bytes.Cut(args, []byte(" "))
	if len(key) == 0 || len(key) > maxKey || bytes.Count(args, []byte(" ")) != n-1 {
		return 0, false
	}
	_, rest, _ = bytes.Cut(rest, []byte(" "))
	_, rest, _ = bytes.Cut(rest, []byte(" "))
	length, _, _ := bytes.Cut(rest, []byte(" "))
	return parseSize(length)
}

func parseSize(b []byte) (int, bool) {
	n, err := strconv.ParseUint(string(b), 10, 32)
	return int(n), err == nil && n <= maxData
}

var (
	errOutOfStep = errors.New("replies out of step")
	errUnasked   = errors.New("the server sent what nobody asked for")
	errRefused   = errors.New("the server takes no connection: Too many open connections")
)

// reply collects what the server answers to one or more commands.
type reply struct {
	kinds []kind // of the commands
	data  []byte // the replies, one after the other
	ends  []int  // where in data each complete reply ends
	line  int    // where in data the line under way starts
	block int    // bytes that are missing of the data block under way
}

// read takes what belongs to the reply from b, which may hold any part of the
// stream. It returns the rest of b and whether the reply is complete. Data
// blocks are not kept unless wanted. An error means that nothing further on the
// stream can be trusted.
func (r *reply) read(b []byte, wanted bool) (rest []byte, complete bool, err error) {
	for len(b) > 0 {
		if r.block > 0 {
			n := min(r.block, len(b))
			if wanted {
				r.data = append(r.data, b[:n]...)
			}
			b = b[n:]
			r.block -= n
			r.line = len(r.data)
			continue
		}
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			n = len(b)
		}
		r.data = append(r.data, b[:n]...)
		b = b[n:]
		line := r.data[r.line:]
		if len(line) > maxLine {
			return nil, false, fmt.Errorf("%w: endless line %q", errOutOfStep, line[:32])
		}
		if line[len(line)-1] != '\n' {
			return nil, false, nil
		}
		r.line = len(r.data)
		block, err := parseReplyLine(r.kinds[len(r.ends)], line)
		if err != nil {
			return nil, false, err
		}
		if block == anotherLine {
			continue
		}
		if block > 0 {
			r.block = block
			if wanted {
				r.data = slices.Grow(r.data, block)
			}
			continue
		}
		r.ends = append(r.ends, len(r.data))
		if len(r.ends) == len(r.kinds) {
			return b, true, nil
		}
	}
	return nil, false, nil
}

// reset makes r ready for other commands.
func (r *reply) reset() {
	*r = reply{kinds: r.kinds[:0], data: reuse(r.data), ends: r.ends[:0]}
}

const anotherLine = -1

// parseReplyLine returns the length of the data block that follows the line, its
// line end included; anotherLine if a line follows; or 0 when the line ends the reply.
func parseReplyLine(k kind, line []byte) (int, error) {
	refused := bytes.HasPrefix(line, []byte("CLIENT_ERROR ")) || string(line) == "ERROR\r\n"
	switch {
	case string(line) == "ERROR Too many open connections\r\n":
		return 0, errRefused // Memcached says so instead of reading, and closes the connection
	case k == storageCommand && refused:
		// Memcached refused the command line without reading the data block,
		// and takes the block for commands.
		return 0, fmt.Errorf("%w: %q to a storage command", errOutOfStep, line)
	case k == statsCommand && bytes.HasPrefix(line, []byte("STAT ")):
		return anotherLine, nil
	case k < readCommand, refused, string(line) == "END\r\n", bytes.HasPrefix(line, []byte("SERVER_ERROR ")):
		return 0, nil
	}
	// VALUE <key> <flags> <length> [<cas id>]
	word, rest, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\r\n")), []byte(" "))
	_, rest, _ = bytes.Cut(rest, []byte(" "))
	_, rest, _ = bytes.Cut(rest, []byte(" "))
	length, _, _ := bytes.Cut(rest, []byte(" "))
	size, ok := parseSize(length)
	if !ok || k != readCommand || string(word) != "VALUE" {
		return 0, fmt.Errorf("%w: %q in the reply to a get or to stats", errOutOfStep, line)
	}
	return size + len("\r\n"), nil
}

// reuse returns an empty buffer, b's own unless that is large.
func reuse(b []byte) []byte {
	if cap(b) > maxKept {
		return nil
	}
	return b[:0]
}
