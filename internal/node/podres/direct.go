// SPDX-License-Identifier: Apache-2.0

package podres

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// direct makes calls over one HTTP/2 connection (RFC 9113), in the caller's
// goroutine. net/http reads and writes in other goroutines, and waking them
// costs more than the rest of a call, each second on each node. direct
// implements only what a successful call needs: a whole message, then trailers.
// It does not decode the trailers; the caller compares them with those of
// earlier successes.
type direct struct {
	conn   net.Conn
	r      *bufio.Reader
	out    []byte // buffer for writes
	stream uint32 // of the last call; a client's are odd, and the first call's is 3
	unread uint32 // bytes of DATA since the last WINDOW_UPDATE
	last   bool   // the server accepts no more calls on this connection
	ending []byte // the trailers of the last answer, encoded
}

// Frames of HTTP/2, and the flags that they have here.
const (
	frameData     = 0x0
	frameHeaders  = 0x1
	frameReset    = 0x3
	frameSettings = 0x4
	framePush     = 0x5
	framePing     = 0x6
	frameGoAway   = 0x7
	frameWindow   = 0x8

	flagEndStream  = 0x1
	flagAck        = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8

	frameHeader = 9
	// maxFrame is the default of SETTINGS_MAX_FRAME_SIZE.
	maxFrame = 1 << 14
	// maxWindow is the largest flow-control window; a connection begins with 65535.
	maxWindow   = 1<<31 - 1
	firstWindow = 65535
)

const (
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	// Without a table of headers (SETTINGS_HEADER_TABLE_SIZE), the same trailers
	// have the same bytes.
	noTable = "\x00\x01\x00\x00\x00\x00"
	noPush  = "\x00\x02\x00\x00\x00\x00" // SETTINGS_ENABLE_PUSH
	window  = "\x00\x04\x7f\xff\xff\xff" // SETTINGS_INITIAL_WINDOW_SIZE
)

// newDirect prepares a connection. The connection preface is sent with the
// first call.
func newDirect(conn net.Conn) *direct {
	d := &direct{conn: conn, stream: 1, r: bufio.NewReaderSize(conn, maxFrame)}
	d.out = append(d.out, preface...)
	d.out = appendFrame(d.out, frameSettings, 0, 0, []byte(noTable+noPush+window))
	d.unread = maxWindow - firstWindow
	return d
}

func appendFrame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	b = append(b, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// headersOf returns the request's headers in HPACK (RFC 7541), without indexing
// and Huffman coding. The numbers are indexes of the static table.
func headersOf(method string) []byte {
	b := []byte{0x80 | 3, 0x80 | 6} // :method POST, :scheme http
	text := func(s string) { b = append(append(b, byte(len(s))), s...) }
	b = append(b, 4) // :path
	text(method)
	b = append(b, 1) // :authority
	text("localhost")
	b = append(b, 15, 31-15) // content-type
	text("application/grpc")
	b = append(b, 15, 58-15) // user-agent
	text("gpupilot-agent")
	b = append(b, 0)
	text("te")
	text("trailers")
	return b
}

// maxMethod is the longest text whose length headersOf can write in one byte.
const maxMethod = 126

// call calls a method with the empty message and returns the response with its
// prefix. limit is the largest response in bytes, without the prefix.
func (d *direct) call(ctx context.Context, method string, limit int) ([]byte, error) {
	if len(method) > maxMethod {
		return nil, fmt.Errorf("method %q is too long", method)
	}
	stop := context.AfterFunc(ctx, func() { _ = d.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	d.stream += 2
	d.window()
	d.out = appendFrame(d.out, frameHeaders, flagEndHeaders, d.stream, headersOf(method))
	d.out = appendFrame(d.out, frameData, flagEndStream, d.stream, make([]byte, prefixLength))
	if err := d.flush(); err != nil {
		return nil, err
	}
	var body bytes.Buffer
	for {
		done, err := d.frame(&body)
		if err != nil {
			return nil, err
		}
		if body.Len() > limit+prefixLength {
			return nil, fmt.Errorf("the answer has more than %d bytes", limit)
		}
		if done {
			return body.Bytes(), nil
		}
	}
}

// window returns the consumed bytes of the connection's flow-control window to
// the server.
func (d *direct) window() {
	if d.unread > 0 {
		d.out = appendFrame(d.out, frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, d.unread))
		d.unread = 0
	}
}

func (d *direct) flush() error {
	_, err := d.conn.Write(d.out)
	d.out = d.out[:0]
	return err
}

// frame reads a frame, and reports whether it ends the response.
func (d *direct) frame(body *bytes.Buffer) (done bool, err error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(d.r, h[:]); err != nil {
		return false, err
	}
	n := int(h[0])<<16 | int(h[1])<<8 | int(h[2])
	kind, flags, stream := h[3], h[4], binary.BigEndian.Uint32(h[5:])&maxWindow
	if n > maxFrame {
		return false, fmt.Errorf("a frame has %d bytes: the answer is not HTTP/2", n)
	}
	payload, err := d.r.Peek(n)
	if err != nil {
		return false, err
	}
	defer func() { _, _ = d.r.Discard(n) }() // it is there
	ours := stream == d.stream
	switch kind {
	case frameData:
		d.unread += uint32(n)
		if ours && flags&flagEndStream != 0 {
			return false, errors.New("the answer ends without trailers")
		}
		if ours {
			return false, appendData(body, payload, flags)
		}
	case frameHeaders:
		if !ours || flags&flagEndStream == 0 {
			return false, nil
		}
		if flags&flagEndHeaders == 0 {
			return false, errors.New("the trailers are longer than a frame")
		}
		d.ending = append(d.ending[:0], payload...)
		return true, nil
	case frameReset:
		if ours {
			return false, errors.New("the server reset the call")
		}
	case frameSettings:
		if flags&flagAck == 0 {
			d.out = appendFrame(d.out, frameSettings, flagAck, 0, nil)
			return false, d.flush()
		}
	case framePing:
		if flags&flagAck == 0 {
			d.out = appendFrame(d.out, framePing, flagAck, 0, payload)
			return false, d.flush()
		}
	case frameGoAway:
		d.last = true
		if n < 8 || binary.BigEndian.Uint32(payload)&maxWindow < d.stream {
			return false, errors.New("the server closed the connection")
		}
	case framePush:
		return false, errors.New("the server sent a push, which the client had disabled")
	}
	return false, nil
}

// appendData appends a DATA frame's bytes without its padding.
func appendData(body *bytes.Buffer, payload []byte, flags byte) error {
	if flags&flagPadded != 0 {
		if len(payload) == 0 || int(payload[0]) > len(payload)-1 {
			return errors.New("a frame has more padding than bytes")
		}
		payload = payload[1 : len(payload)-int(payload[0])]
	}
	body.Write(payload)
	return nil
}
