// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
)

// The bounds of an answer's head. A server of metrics sends 200 bytes.
const (
	maxHead     = 16 << 10 // of all heads of an answer
	maxHeadLine = 4 << 10
	maxInterim  = 4 // heads with a status of 1xx before the answer
)

// errHTTP says that what answers does not speak HTTP/1.1 as RFC 9112 has it.
var errHTTP = errors.New("malformed HTTP answer")

// answer reads one answer of HTTP/1.x. It takes less than net/http does: what is
// ambiguous is refused, not guessed.
type answer struct {
	in     *bufio.Reader
	status int
	length int64 // of the body; negative: not known
	close  bool  // the connection cannot be used again
	bare   bool  // the last line ended with a line feed only

	chunked bool
	body    io.Reader // of the chunks
	left    int64     // of a body of known length
	ended   bool      // all of the body was read
}

// readHead reads up to the body.
func (a *answer) readHead(in *bufio.Reader) error {
	left := maxHead
	for range maxInterim + 1 {
		*a = answer{in: in, length: -1}
		if err := a.head(&left); err != nil {
			return err
		}
		if a.status >= 200 {
			return a.frame()
		}
		if a.status == http.StatusSwitchingProtocols {
			return errHTTP
		}
	}
	return errHTTP
}

// head reads a status line and the header behind it.
func (a *answer) head(left *int) error {
	text, err := a.line(left)
	if err != nil {
		return err
	}
	// HTTP/1.1 200 OK; the last blank and the words may be missing.
	const version = "HTTP/1."
	if len(text) < len(version)+len("1 200") || string(text[:len(version)]) != version || text[8] != ' ' || len(text) > 12 && text[12] != ' ' {
		return errHTTP
	}
	old := text[7] == '0'
	if !old && text[7] != '1' {
		return errHTTP
	}
	for _, c := range text[9:12] {
		if c < '0' || c > '9' {
			return errHTTP
		}
		a.status = 10*a.status + int(c-'0')
	}
	if a.status < 100 {
		return errHTTP
	}
	a.close = old
	for {
		text, err := a.line(left)
		switch {
		case err != nil:
			return err
		case len(text) == 0:
			if old && a.chunked {
				return errHTTP
			}
			return nil
		}
		if err := a.field(text); err != nil {
			return err
		}
	}
}

// line reads a line without its end, which is good until the next read.
func (a *answer) line(left *int) ([]byte, error) {
	text, err := a.in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, errHTTP
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	}
	if *left -= len(text); *left < 0 {
		return nil, errHTTP
	}
	text = text[:len(text)-1]
	a.bare = len(text) == 0 || text[len(text)-1] != '\r'
	if !a.bare {
		text = text[:len(text)-1]
	}
	return text, nil
}

// field takes a line of the header.
func (a *answer) field(text []byte) error {
	name, value, ok := bytes.Cut(text, []byte(":"))
	if !ok || len(name) == 0 || bytes.ContainsFunc(name, notToken) || bytes.ContainsFunc(value, isControl) {
		return errHTTP
	}
	value = bytes.Trim(value, " \t")
	switch {
	case isFold(name, "content-length"):
		n, ok := parseLength(value)
		if !ok || a.length >= 0 && n != a.length {
			return errHTTP
		}
		a.length = n
	case isFold(name, "transfer-encoding"):
		if a.chunked || !isFold(value, "chunked") {
			return errHTTP
		}
		a.chunked = true
	case isFold(name, "connection"):
		for option := range bytes.SplitSeq(value, []byte(",")) {
			a.close = a.close || isFold(bytes.Trim(option, " \t"), "close")
		}
	}
	return nil
}

// frame finds out where the body ends.
func (a *answer) frame() error {
	switch {
	case a.status == http.StatusNoContent || a.status == http.StatusNotModified:
		a.length, a.chunked, a.ended = 0, false, true
	case a.chunked:
		a.close = a.close || a.length >= 0 // RFC 9112, 6.3: one of two lies
		a.length, a.body = -1, httputil.NewChunkedReader(a.in)
	case a.length >= 0:
		a.left, a.ended = a.length, a.length == 0
	default:
		a.close = true // the body ends with the connection
	}
	return nil
}

// Read reads the body.
func (a *answer) Read(b []byte) (n int, err error) {
	switch {
	case a.ended:
		return 0, io.EOF
	case a.chunked:
		n, err = a.body.Read(b)
		if errors.Is(err, io.EOF) {
			err = a.trailer()
		}
		return n, err
	case a.length < 0:
		n, err = a.in.Read(b)
		a.ended = errors.Is(err, io.EOF)
		return n, err
	}
	if int64(len(b)) > a.left {
		b = b[:a.left]
	}
	n, err = a.in.Read(b)
	switch a.left -= int64(n); {
	case a.left == 0:
		a.ended, err = true, io.EOF
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// trailer reads what stands behind the last chunk. It gives io.EOF.
func (a *answer) trailer() error {
	left := maxHead
	for {
		text, err := a.line(&left)
		switch {
		case err != nil:
			return err
		case a.bare || len(text) > 0 && bytes.IndexByte(text, ':') <= 0:
			return errHTTP
		case len(text) == 0:
			a.ended = true
			return io.EOF
		}
	}
}

// reusable says whether the connection is good for another request.
func (a *answer) reusable() bool {
	return a.ended && !a.close && a.in.Buffered() == 0
}

// parseLength reads a Content-Length of up to 18 digits.
func parseLength(b []byte) (n int64, ok bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}

// isFold says whether b is a word of lower-case ASCII letters and hyphens, in
// whatever case.
func isFold(b []byte, word string) bool {
	if len(b) != len(word) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

// notToken says whether a character cannot be part of a header field's name.
func notToken(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return false
	case r < 0x80:
		return !bytes.ContainsRune([]byte("!#$%&'*+-.^_`|~"), r)
	}
	return true
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
