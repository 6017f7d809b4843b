package libvirt

import "fmt"

// ContradictionError says that a domain XML and a placement cannot both hold, and
// that changing the XML to fit would break the guest or turn it into another
// guest.
type ContradictionError struct {
	Field     string // subject of the disagreement
	XML       string // the domain XML's value
	Placement string // the placement's value
	Remedy    string // remedy
}

func (c *ContradictionError) Error() string {
	return fmt.Sprintf("%s: the domain XML says %s, the placement %s; %s", c.Field, c.XML, c.Placement, c.Remedy)
}

const placeAgain = "derive the spec from the XML and place again"
