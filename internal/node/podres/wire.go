// SPDX-License-Identifier: Apache-2.0

package podres

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// The parts of a List response that are read, with the field numbers of
// k8s.io/kubelet/pkg/apis/podresources/v1/api.proto. That package's own code
// would link 3 MiB of grpc-go and protobuf reflection into the agent.
type (
	podResources struct {
		name, namespace string // 1, 2
		containers      []containerResources
	}
	containerResources struct {
		name    string // 1
		devices []containerDevices
		claims  []claim
	}
	containerDevices struct {
		resource string   // 1
		ids      []string // 2
	}
	claim struct {
		name, namespace string // 2, 3
		devices         []claimDevice
	}
	claimDevice struct {
		driver, pool, device, share string // 2, 3, 4, 5
	}
)

// parseList parses a ListPodResourcesResponse.
func parseList(b []byte) (pods []podResources, err error) {
	err = eachField(b, func(n protowire.Number, v []byte) error {
		if n != 1 {
			return nil
		}
		p, err := parsePod(v)
		pods = append(pods, p)
		return err
	})
	return pods, err
}

// parseAllocatable parses an AllocatableResourcesResponse.
func parseAllocatable(b []byte) (out []containerDevices, err error) {
	err = eachField(b, func(n protowire.Number, v []byte) error {
		if n != 1 {
			return nil
		}
		d, err := parseDevices(v)
		out = append(out, d)
		return err
	})
	return out, err
}

func parsePod(b []byte) (p podResources, err error) {
	err = eachField(b, func(n protowire.Number, v []byte) error {
		switch n {
		case 1:
			p.name = string(v)
		case 2:
			p.namespace = string(v)
		case 3:
			c, err := parseContainer(v)
			p.containers = append(p.containers, c)
			return err
		}
		return nil
	})
	return p, err
}

func parseContainer(b []byte) (c containerResources, err error) {
	err = eachField(b, func(n protowire.Number, v []byte) error {
		switch n {
		case 1:
			c.name = string(v)
		case 2:
			d, err := parseDevices(v)
			c.devices = append(c.devices, d)
			return err
		case 5:
			k, err := parseClaim(v)
			c.claims = append(c.claims, k)
			return err
		}
		return nil
	})
	return c, err
}

func parseClaim(b []byte) (c claim, err error) {
	err = eachField(b, func(n protowire.Number, v []byte) error {
		switch n {
		case 2:
			c.name = string(v)
		case 3:
			c.namespace = string(v)
		case 4:
			d, err := parseClaimDevice(v)
			c.devices = append(c.devices, d)
			return err
		}
		return nil
	})
	return c, err
}

func parseClaimDevice(b []byte) (d claimDevice, err error) {
	err = eachField(b, func(n protowire.Number, v []byte) error {
		switch n {
		case 2:
			d.driver = string(v)
		case 3:
			d.pool = string(v)
		case 4:
			d.device = string(v)
		case 5:
			d.share = string(v)
		}
		return nil
	})
	return d, err
}

func parseDevices(b []byte) (d containerDevices, err error) {
	err = eachField(b, func(n protowire.Number, v []byte) error {
		switch n {
		case 1:
			d.resource = string(v)
		case 2:
			d.ids = append(d.ids, string(v))
		}
		return nil
	})
	return d, err
}

// eachField calls f for the strings and messages in a message. It skips fields
// of other types; f ignores numbers that it does not know.
func eachField(b []byte, f func(n protowire.Number, v []byte) error) error {
	for len(b) > 0 {
		number, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("malformed message: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if typ == protowire.BytesType {
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return fmt.Errorf("malformed field %d: %w", number, protowire.ParseError(n))
			}
			if err := f(number, v); err != nil {
				return err
			}
			b = b[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(number, typ, b); n < 0 {
			return fmt.Errorf("malformed field %d: %w", number, protowire.ParseError(n))
		}
		b = b[n:]
	}
	return nil
}
