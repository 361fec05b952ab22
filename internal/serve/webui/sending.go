// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/fair"
)

// The bounds of answers that clients have not read yet, in bytes. The views, which viewers share, are in maxAlive.
const (
	maxSending      = 64 << 20
	maxPayerSending = 16 << 20 // of one payer
	// smallAnswer is what the connections' own buffers hold.
	smallAnswer = 32 << 10
)

// sending counts the answers that are being sent, by who pays for them.
type sending struct {
	mu  sync.Mutex
	all int
	by  map[fair.Payer]int
}

// begin counts an answer, if the bounds allow it.
func (s *sending) begin(payer fair.Payer, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all+n > maxSending || payer != (fair.Payer{}) && s.by[payer]+n > maxPayerSending {
		return false
	}
	if s.by == nil {
		s.by = map[fair.Payer]int{}
	}
	s.all += n
	s.by[payer] += n
	return true
}

func (s *sending) end(payer fair.Payer, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all -= n
	if s.by[payer] -= n; s.by[payer] == 0 {
		delete(s.by, payer)
	}
}

// deliver sends an answer that is not shared, or refuses it while others that the same payer asked for are not read.
func (p *Page) deliver(w http.ResponseWriter, v Viewer, body []byte) {
	if n := len(body); n > smallAnswer {
		payer := v.Payer()
		if !p.sending.begin(payer, n) {
			p.limited.answers.Add(1)
			w.Header().Del("Content-Encoding")
			refuse(w, http.StatusServiceUnavailable, time.Second, "earlier answers have not been read yet; read them, and try again")
			return
		}
		defer p.sending.end(payer, n)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // an error means that the client has disconnected
}
