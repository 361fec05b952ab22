// SPDX-License-Identifier: Apache-2.0

package budget

import "time"

// Sample holds the counters of a server at one time, since its start.
type Sample struct {
	At           time.Time
	Ended        float64 // requests that were answered or aborted
	Aborted      float64 // of Ended
	First, Token Latency // zero: no limit
}

// Latency is a histogram around a limit.
type Latency struct {
	Limited      bool
	Count        float64 // observations
	Below, Above float64 // of Count: up to the edge below the limit, and up to the one above
	OfTokens     bool    // each token is observed, and not each request
}

// over returns the requests over the limit: at least and at most. Of a histogram of tokens
// it is the share of the tokens.
func (l *Latency) over(before *Latency, requests float64) (least, most float64) {
	n := l.Count - before.Count
	least, most = n-(l.Above-before.Above), n-(l.Below-before.Below)
	least = min(max(0, least), n)
	most = min(max(least, most), n)
	if l.OfTokens && l.Count > 0 {
		least, most = least*requests/l.Count, most*requests/l.Count
	}
	return least, most
}

// Count is a number of requests.
type Count struct {
	Ended, Aborted   float64
	First, FirstMost float64 // over the limit of the time to the first token: at least, at most
	Token, TokenMost float64 // over the limit of the time between tokens: at least, at most
}

// plus returns the sum of c and w × o.
func (c Count) plus(o *Count, w float64) Count {
	return Count{
		c.Ended + w*o.Ended, c.Aborted + w*o.Aborted, c.First + w*o.First, c.FirstMost + w*o.FirstMost,
		c.Token + w*o.Token, c.TokenMost + w*o.TokenMost,
	}
}

// Add adds another number.
func (c *Count) Add(o *Count) { *c = c.plus(o, 1) }

// Missed returns the requests that missed a limit or were aborted: at least and at most.
// Requests that missed both limits are in both counts, so that at least the larger count
// and at most the sum of both missed.
func (c *Count) Missed() (least, most float64) {
	return min(max(c.First, c.Token, c.Aborted), c.Ended), min(c.FirstMost+c.TokenMost+c.Aborted, c.Ended)
}

// mostPerSecond is the highest rate of a server, in requests/s, that counts. Higher ones are
// errors of the server, or lies.
const mostPerSecond = 1e5

// Meter counts the requests of servers. The zero Meter has seen none.
type Meter struct{ last map[string]Sample }

// Add returns the requests of a server since its last sample. The first sample of a server
// counts nothing: its requests may have been counted before.
func (m *Meter) Add(server string, s Sample) (c Count) {
	before, known := m.last[server]
	if known && !s.At.After(before.At) {
		return Count{}
	}
	if m.last == nil {
		m.last = map[string]Sample{}
	}
	m.last[server] = s
	if !known {
		return Count{}
	}
	most := mostPerSecond * s.At.Sub(before.At).Seconds()
	if s.isBefore(&before) { // the server was restarted
		before = Sample{}
	}
	c = Count{Ended: s.Ended - before.Ended, Aborted: s.Aborted - before.Aborted}
	c.First, c.FirstMost = s.First.over(&before.First, s.Ended)
	c.Token, c.TokenMost = s.Token.over(&before.Token, s.Ended)
	if !(max(c.Ended, c.Aborted, c.FirstMost, c.TokenMost) <= most) {
		return Count{}
	}
	return c
}

// isBefore reports whether a counter is lower than before.
func (s *Sample) isBefore(before *Sample) bool {
	return s.Ended < before.Ended || s.Aborted < before.Aborted || s.First.Count < before.First.Count || s.Token.Count < before.Token.Count
}

// Keep forgets the servers that are gone, if it knows more than there are.
func (m *Meter) Keep(servers int, exists func(server string) bool) {
	if len(m.last) <= servers {
		return
	}
	for server := range m.last {
		if !exists(server) {
			delete(m.last, server)
		}
	}
}
