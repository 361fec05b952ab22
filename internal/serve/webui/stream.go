// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/bearer"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// eventHeader has the id of a view, with which a stream continues it.
const eventHeader = "X-Gpupilot-Event"

// The bounds of streams.
const (
	maxStreams       = 256 // of --address's 512 connections
	maxViewerStreams = 6   // a viewer's tabs
	maxPayerStreams  = 32  // of the service accounts of one namespace, which are as many as it likes
	// sendTimeout is how long a client may take to receive an event.
	sendTimeout = 10 * time.Second
	// maxStreamTime ends a stream. The client continues with the id of its last event.
	maxStreamTime = 15 * time.Minute
)

// streams counts the open streams, by viewer and by the namespace that pays for a viewer.
type streams struct {
	mu   sync.Mutex
	all  int
	open map[streamOwner]int
}

// streamOwner is a viewer, or a payer. Without authentication it is neither: all are one.
type streamOwner struct {
	viewer string
	payer  fair.Payer
}

// begin counts a stream, if the bounds allow it.
func (s *streams) begin(v Viewer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := maxViewerStreams
	if v.Key() == "" { // without authentication, all are one
		most = maxStreams
	}
	viewer, payer := streamOwner{viewer: v.Key()}, streamOwner{payer: v.Payer()}
	if s.all >= maxStreams || s.open[viewer] >= most || payer.payer != (fair.Payer{}) && s.open[payer] >= maxPayerStreams {
		return false
	}
	if s.open == nil {
		s.open = map[streamOwner]int{}
	}
	s.all++
	s.open[viewer]++
	if payer.payer != (fair.Payer{}) {
		s.open[payer]++
	}
	return true
}

func (s *streams) end(v Viewer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	s.close(streamOwner{viewer: v.Key()})
	if v.Payer() != (fair.Payer{}) {
		s.close(streamOwner{payer: v.Payer()})
	}
}

func (s *streams) close(o streamOwner) {
	if s.open[o]--; s.open[o] == 0 {
		delete(s.open, o)
	}
}

// serveStream sends server-sent events until the client leaves: "view" with a whole View, and
// "delta" with the difference of the next one, for the viewer's rights at that moment. A client
// that sends the header Last-Event-ID continues.
func (p *Page) serveStream(w http.ResponseWriter, r *http.Request, v Viewer) {
	if !p.streams.begin(v) {
		p.limited.answers.Add(1)
		refuse(w, http.StatusServiceUnavailable, time.Minute, "too many open streams; poll /api/v1/view")
		return
	}
	defer p.streams.end(v)
	ctx, cancel := context.WithTimeout(r.Context(), maxStreamTime)
	defer cancel()
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Time{}) // the request is read; an error means that there is no deadline
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // for nginx
	id := r.Header.Get("Last-Event-ID")
	for {
		e, wait, err := p.nextEvents(ctx, r, id)
		if err != nil {
			return // the client asks again, and learns why
		}
		id = e.id
		_ = c.SetWriteDeadline(time.Now().Add(sendTimeout)) // an error means that there is none
		if _, err = w.Write(e.bytes); err == nil {
			err = c.Flush()
		}
		if err != nil {
			return // the client has disconnected, or is too slow
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

var errTokenEnded = errors.New("the token is not valid any more")

// events are what a client lacks, as text, and the id of the view that it then has.
type events struct {
	bytes []byte
	id    string
}

// nextEvents returns what the client lacks who has the view of an id, and when to ask again.
// It authenticates the token anew, so that a stream ends with the right to it.
func (p *Page) nextEvents(ctx context.Context, r *http.Request, id string) (out events, wait time.Duration, err error) {
	v := Viewer(everybody{})
	if p.access != nil {
		token, err := bearer.Of(r, view.TokenHeader)
		if err != nil {
			return out, 0, fmt.Errorf("read the token: %w", err)
		}
		switch v, err = p.access.Authenticate(ctx, token); {
		case err != nil:
			return out, 0, fmt.Errorf("check the token: %w", err)
		case v == nil:
			return out, 0, errTokenEnded
		}
	}
	give, ok := p.slot(ctx, v)
	if !ok {
		return out, 0, errBusy
	}
	defer give()
	g := p.renderer.current()
	s, err := scopeOf(ctx, v, g)
	if err != nil {
		return out, 0, err
	}
	frames, whole, newest, err := p.renderer.news(g, &s, id)
	if err != nil {
		return out, 0, err
	}
	var b bytes.Buffer
	if whole != nil {
		fmt.Fprintf(&b, "event: view\nid: %s\ndata: %s\n\n", newest, bytes.TrimSpace(whole.bytes)) // JSON has no line breaks
		p.renderer.give(whole)
	}
	for i := range frames {
		fmt.Fprintf(&b, "event: delta\nid: %s\ndata: %s\n\n", frames[i].id, frames[i].data)
	}
	if b.Len() == 0 {
		b.WriteString(": nothing new\n\n")
	}
	return events{b.Bytes(), newest}, p.renderer.pause(), nil
}

// pause returns the time until a newer view can be there.
func (r *renderer) pause() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return min(max(time.Until(r.next), renderEvery), 3*time.Second)
}
