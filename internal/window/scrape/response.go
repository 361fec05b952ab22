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

// The limits of a response's head. A metrics server usually sends 200 bytes.
const (
	maxHead     = 16 << 10 // of all heads of a response, in bytes
	maxHeadLine = 4 << 10
	maxInterim  = 4 // heads with a 1xx status before the response
)

// errHTTP is the error for a response that violates RFC 9112.
var errHTTP = errors.New("malformed HTTP response")

// response reads one HTTP/1.x response. It accepts less than net/http: an ambiguous
// response is an error.
type response struct {
	in     *bufio.Reader
	status int
	length int64 // of the body; negative: unknown
	close  bool  // the connection cannot be used again
	bare   bool  // the last line ended with a line feed only

	chunked bool
	body    io.Reader // decodes the chunks
	left    int64     // unread bytes of a body of known length
	ended   bool      // the whole body was read
}

// readHead reads the status line and the header.
func (a *response) readHead(in *bufio.Reader) error {
	left := maxHead
	for range maxInterim + 1 {
		*a = response{in: in, length: -1}
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

// head reads one status line and its header, of at most left bytes.
func (a *response) head(left *int) error {
	text, err := a.line(left)
	if err != nil {
		return err
	}
	// HTTP/1.1 200 OK; the last blank and the reason phrase may be missing.
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

// line returns the next line without its end. The slice is valid until the next read.
func (a *response) line(left *int) ([]byte, error) {
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

// field handles one line of the header.
func (a *response) field(text []byte) error {
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

// frame determines the end of the body.
func (a *response) frame() error {
	switch {
	case a.status == http.StatusNoContent || a.status == http.StatusNotModified:
		a.length, a.chunked, a.ended = 0, false, true
	case a.chunked:
		a.close = a.close || a.length >= 0 // RFC 9112, 6.3: with both headers, close the connection
		a.length, a.body = -1, httputil.NewChunkedReader(a.in)
	case a.length >= 0:
		a.left, a.ended = a.length, a.length == 0
	default:
		a.close = true // the end of the connection is the end of the body
	}
	return nil
}

// Read reads the body.
func (a *response) Read(b []byte) (n int, err error) {
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

// trailer reads the trailer after the last chunk. Its error is io.EOF on success.
func (a *response) trailer() error {
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

// reusable reports whether the connection can carry another request.
func (a *response) reusable() bool {
	return a.ended && !a.close && a.in.Buffered() == 0
}

// parseLength parses a Content-Length of up to 18 digits.
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

// isFold reports whether b equals word without regard to case. word has lower-case
// ASCII letters and hyphens only.
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

// notToken reports whether a header field's name may not contain the character.
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
