// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/backtest"
)

// peersCache is a file that keeps what backtests came to without ours. Several
// runs may share it.
type peersCache struct {
	path  string
	mu    sync.Mutex
	kept  map[string]backtest.Kept
	news  bool
	saved time.Time
}

// saveEvery is how much work an interrupted run may lose.
const saveEvery = 2 * time.Minute

// load reads the file. One that is not there or not understood is empty: it is
// no more than a cache.
func (c *peersCache) load() error {
	c.saved, c.kept = time.Now(), map[string]backtest.Kept{}
	b, err := os.ReadFile(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--peers-cache: %w", err)
	}
	if json.Unmarshal(b, &c.kept) != nil {
		c.kept = map[string]backtest.Kept{}
	}
	return nil
}

// save writes the file, with what others have written meanwhile.
func (c *peersCache) save() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.news {
		return nil
	}
	now := peersCache{path: c.path}
	if err := now.load(); err != nil {
		return err
	}
	maps.Copy(now.kept, c.kept)
	b, err := json.Marshal(now.kept)
	if err != nil {
		return fmt.Errorf("--peers-cache: %w", err)
	}
	part := fmt.Sprintf("%s.%d", c.path, os.Getpid())
	if err := errors.Join(os.WriteFile(part, b, 0o644), os.Rename(part, c.path)); err != nil {
		return fmt.Errorf("--peers-cache: %w", err)
	}
	c.news, c.saved = false, time.Now()
	return nil
}

func (c *peersCache) known(key string) (backtest.Kept, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.kept[key]
	return k, ok
}

func (c *peersCache) learned(key string, k backtest.Kept) {
	c.mu.Lock()
	c.kept[key], c.news = k, true
	due := time.Since(c.saved) > saveEvery
	c.mu.Unlock()
	if due {
		_ = c.save() // the last save tells
	}
}
