// SPDX-License-Identifier: Apache-2.0

package webconfig

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"golang.org/x/crypto/bcrypt"
)

const (
	// maxRight limits the correct passwords that are cached, maxWrong the wrong
	// ones.
	maxRight = 64
	maxWrong = 128
	// maxWaiting limits the passwords of one source that are compared or wait for it.
	maxWaiting = 2
)

// passwords compares passwords with bcrypt, which is slow by design. It
// compares one at a time, so that wrong passwords use at most one CPU, and
// caches the result of each pair of user and password. Correct and wrong pairs
// have separate caches, so that many wrong ones do not make a correct one slow.
// A source has few places in the queue, so that its wrong ones do not hold up the
// first use of a new password.
type passwords struct {
	compare func(hash, password []byte) error
	slot    chan struct{} // holds a token while a comparison runs

	mu    sync.Mutex
	right map[answerKey]bool // a key has the hash, so that a changed user has none
	wrong map[answerKey]bool

	waiting   map[string]int              // by source
	comparing map[answerKey]chan struct{} // closed when the comparison ends
}

// answerKey is the digest of a hash, a user and a password.
type answerKey [sha256.Size]byte

func newPasswords() *passwords {
	return &passwords{
		compare: bcrypt.CompareHashAndPassword, slot: make(chan struct{}, 1),
		right: map[answerKey]bool{}, wrong: map[answerKey]bool{}, waiting: map[string]int{},
		comparing: map[answerKey]chan struct{}{},
	}
}

func keyOf(parts ...string) answerKey {
	h := sha256.New()
	for _, p := range parts {
		_ = binary.Write(h, binary.BigEndian, uint64(len(p))) // writing to a hash cannot fail
		_, _ = h.Write([]byte(p))
	}
	return answerKey(h.Sum(nil))
}

// nobody is the hash for unknown users, so that their response takes as long as
// that of a known user.
const nobody = "$2a$10$3ZQpd2OVpFUGNCKIMXhwvOl5LAB5cLUSXbqRQFt6PrqbVi0t7Xp0q"

// check reports whether a user has this password, by the users' hashes. It
// returns false when ctx is done, and if too many unknown passwords of the source wait.
func (p *passwords) check(ctx context.Context, source string, users map[string]string, user, password string) bool {
	hash, known := users[user]
	if !known {
		hash = nobody
	}
	key := keyOf(hash, user, password)
	for {
		if right, found := p.remembered(key); found {
			return right && known
		}
		other, ok := p.enter(source, key)
		if !ok {
			return false
		}
		if other == nil {
			break
		}
		select {
		case <-other: // its result is remembered, unless its request has ended
		case <-ctx.Done():
			return false
		}
	}
	defer p.leave(source, key)
	select {
	case p.slot <- struct{}{}:
		defer func() { <-p.slot }()
	case <-ctx.Done():
		return false
	}
	if right, found := p.remembered(key); found { // by the comparison that held the slot before
		return right && known
	}
	right := p.compare([]byte(hash), []byte(password)) == nil && known
	p.remember(key, right)
	return right
}

// enter takes a place in the queue of a source; ok is false if there is none. If another
// request has the same user and password, it takes none and returns what is closed when
// that comparison ends: after a change of the hashes, all scrapes of a source come with
// the same password at once.
func (p *passwords) enter(source string, key answerKey) (other <-chan struct{}, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if other, ok := p.comparing[key]; ok {
		return other, true
	}
	if p.waiting[source] >= maxWaiting {
		return nil, false
	}
	p.waiting[source]++
	p.comparing[key] = make(chan struct{})
	return nil, true
}

func (p *passwords) leave(source string, key answerKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.comparing[key])
	delete(p.comparing, key)
	if p.waiting[source]--; p.waiting[source] == 0 {
		delete(p.waiting, source)
	}
}

func (p *passwords) remembered(key answerKey) (right, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.right[key], p.right[key] || p.wrong[key]
}

func (p *passwords) remember(key answerKey, right bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, most := p.wrong, maxWrong
	if right {
		m, most = p.right, maxRight
	}
	if len(m) >= most {
		clear(m)
	}
	m[key] = true
}
