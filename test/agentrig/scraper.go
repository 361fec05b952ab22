// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentrig

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Scraper requests /metrics over one persistent connection. It costs as
// little as it can (one write, a few large reads, no allocation), so that what
// is measured with it is the other side.
type Scraper struct {
	conn    net.Conn
	request []byte
	buf     []byte
	n       int // bytes in buf
}

// scrapeTimeout bounds one scrape.
const scrapeTimeout = 30 * time.Second

// NewScraper connects to url, which has no path, and will send these headers,
// given in pairs.
func NewScraper(url string, headers ...string) (*Scraper, error) {
	host := strings.TrimPrefix(url, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "GET /metrics HTTP/1.1\r\nHost: %s\r\nUser-Agent: agentrig\r\n", host)
	for i := 0; i < len(headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", headers[i], headers[i+1])
	}
	b.WriteString("\r\n")
	return &Scraper{conn: conn, request: b.Bytes(), buf: make([]byte, 4<<20)}, nil
}

// Close ends the connection.
func (s *Scraper) Close() { _ = s.conn.Close() }

var (
	endOfHead     = []byte("\r\n\r\n")
	contentLength = []byte("\r\nContent-Length: ")
	statusOK      = []byte("HTTP/1.1 200 ")
)

// Scrape returns the body of one answer, which is valid until the next call.
func (s *Scraper) Scrape() ([]byte, error) {
	if err := s.conn.SetDeadline(time.Now().Add(scrapeTimeout)); err != nil {
		return nil, err
	}
	if _, err := s.conn.Write(s.request); err != nil {
		return nil, err
	}
	s.n = 0
	start, err := s.readUntil(func() int { return bytes.Index(s.buf[:s.n], endOfHead) })
	if err != nil {
		return nil, err
	}
	start += len(endOfHead)
	length, err := lengthOf(s.buf[:start])
	if err != nil {
		return nil, err
	}
	_, err = s.readUntil(func() int { return s.n - start - length })
	return s.buf[start:s.n], err
}

// readUntil reads until found is not negative.
func (s *Scraper) readUntil(found func() int) (int, error) {
	for {
		if i := found(); i >= 0 {
			return i, nil
		}
		n, err := s.conn.Read(s.buf[s.n:])
		s.n += n
		if err != nil {
			return 0, err
		}
	}
}

// lengthOf returns the length of the body from a header. The agent always sends it.
func lengthOf(head []byte) (int, error) {
	i := bytes.Index(head, contentLength)
	if !bytes.HasPrefix(head, statusOK) || i < 0 {
		return 0, fmt.Errorf("the answer is not %d with a length: %q", http.StatusOK, head)
	}
	digits := head[i+len(contentLength):]
	return strconv.Atoi(string(digits[:bytes.IndexByte(digits, '\r')]))
}
