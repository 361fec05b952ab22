// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
)

// maxHealth is the limit of a response in bytes. 72 devices with a few lines each
// take 30 KB.
const maxHealth = 1 << 20

// ReadHealth reads the health of a node's GPUs from its agent's metrics at address.
func ReadHealth(ctx context.Context, client Doer, address url.URL) (*gpu.NodeHealth, error) {
	req, err := newRequest(address, page.HealthNames())
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req.WithContext(ctx))
	if err != nil {
		return nil, errors.New(describe(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered %s", status(resp.StatusCode))
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxHealth+1))
	switch {
	case err != nil:
		return nil, errors.New(describe(err))
	case len(text) > maxHealth:
		return nil, fmt.Errorf("response is longer than the limit of %d bytes", maxHealth)
	}
	return page.ParseHealth(text)
}
