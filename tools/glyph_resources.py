"""Make the resources of the benchmark `glyphs` again: handwriting, typeface masks, photographs, NOTICE.

For maintainers only; the package itself never runs this. It needs scikit-learn (the handwriting and the two
photographs) and, under --fonts, the font files of the table below, as Debian packages them (fonts-lato and so
on). Other versions of FreeType, Pillow or a font may give slightly other masks: then SHA256 in
fedshift/data/glyphs.py must be set again, and results are no longer comparable with earlier ones.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits, load_sample_image

CELL, INK = 32, 26  # side of a mask, and the longest side of the digit within it
NEAR = 0.03  # mean difference below which two faces count as the same
LEVELS = 15  # masks keep sixteen grey levels, which packs far better than 256
OUT = Path(__file__).parents[1] / "src/fedshift/data/resources/glyphs"

# domain | family | author | licence | faces. Each family, and near copies of it, in one domain alone.
TYPEFACES = """
printed | Anonymous Pro | Mark Simonson | OFL 1.1 | Anonymous Pro.ttf
printed | Arapey | Eduardo Rodriguez Tunni | OFL 1.1 | Arapey-Regular.otf Arapey-Black.otf
printed | Comfortaa | Johan Aakerlund | OFL 1.1 | Comfortaa-Regular.ttf Comfortaa-Bold.ttf
printed | DejaVu Sans | Bitstream, DejaVu authors | Bitstream Vera | DejaVuSans.ttf DejaVuSans-Bold.ttf
printed | DejaVu Serif | Bitstream, DejaVu authors | Bitstream Vera | DejaVuSerif.ttf DejaVuSerif-BoldItalic.ttf
printed | EB Garamond | Georg Duffner | OFL 1.1 | EBGaramond12-Regular.otf EBGaramond12-Italic.otf
printed | Fanwood | Barry Schwartz | MIT | Fanwood.otf
printed | Fira Code | Nikita Prokopov, Carrois | OFL 1.1 | FiraCode-Regular.ttf FiraCode-Bold.ttf
printed | Gentium | SIL International | OFL 1.1 | Gentium-R.ttf Gentium-I.ttf
printed | Goudy Bookletter 1911 | Barry Schwartz | public domain | GoudyBookletter1911.otf
printed | Jura | Daniel Johnson, Alexei Vanyashin | OFL 1.1 | Jura-Medium.otf Jura-Bold.otf
printed | Kaushan Script | Pablo Impallari | OFL 1.1 | KaushanScript-Regular.otf
printed | Lato | Lukasz Dziedzic | OFL 1.1 | Lato-Regular.ttf Lato-Light.ttf Lato-BlackItalic.ttf
printed | Leckerli One | Gesine Todt | OFL 1.1 | LeckerliOne-Regular.ttf
printed | Linden Hill | Barry Schwartz | MIT | LindenHill.otf
printed | Linux Biolinum | Philipp H. Poll | OFL 1.1 | LinBiolinum_R.otf LinBiolinum_RB.otf
printed | Linux Libertine | Philipp H. Poll | OFL 1.1 | LinLibertine_R.otf LinLibertine_RBI.otf
printed | Lobster Two | Pablo Impallari | OFL 1.1 | LobsterTwo-Regular.otf LobsterTwo-BoldItalic.otf
printed | Old Standard | Alexey Kryukov | OFL 1.0 | OldStandard-Regular.ttf OldStandard-Bold.ttf OldStandard-Italic.ttf
printed | Play | Jonas Hecksher | OFL 1.1 | Play-Regular.ttf Play-Bold.ttf
printed | Prociono | Barry Schwartz | public domain | Prociono.otf
printed | Quattrocento | Pablo Impallari | OFL 1.1 | Quattrocento-Regular.otf
printed | Vollkorn | Friedrich Althausen | OFL 1.1 | Vollkorn-Regular.ttf Vollkorn-BlackItalic.ttf
printed | Yrsa | Rosetta Type | OFL 1.1 | Yrsa-Light.ttf Yrsa-Bold.ttf
blended | Andika | SIL International | OFL 1.1 | Andika-Regular.ttf Andika-Bold.ttf
blended | Because We Have To | Liz Wetzel, Red Hat | OFL 1.1 | BecauseWeConnect-Regular.otf BecauseWeCreate-Regular.otf
blended | Breip | Adam Breipohl | OFL 1.0 | breipfont.ttf
blended | Cherry Bomb | satsuyako | OFL 1.1 | CherryBomb-Regular.otf
blended | Comic Neue | Craig Rozynski | OFL 1.1 | ComicNeue-Regular.otf ComicNeue-Bold.otf ComicNeue-Italic.otf
blended | Dancing Script | Pablo Impallari | OFL 1.1 | DancingScript-Regular.otf DancingScript-Bold.otf
blended | DkgHandwriting | Daniel Kahn Gillmor | OFL 1.1 | dkg.ttf dkgBd.ttf
blended | Havana | Joanna Angulska | OFL 1.1 | Havana-Regular.otf
blended | Humor Sans | Michael Ciuffo | OFL 1.1 | Humor-Sans.ttf
blended | Klee One | Fontworks | OFL 1.1 | KleeOne-Regular.ttf KleeOne-SemiBold.ttf
blended | Lemonada | Mohamed Gaber, Eduardo Tunni | OFL 1.1 | Lemonada-Light.otf Lemonada-Bold.otf
blended | Reggae One | Fontworks | OFL 1.1 | ReggaeOne-Regular.ttf
blended | RocknRoll One | Fontworks | OFL 1.1 | RocknRollOne-Regular.ttf
blended | Stick | Fontworks | OFL 1.1 | Stick-Regular.ttf
blended | YOzFont | Y.OzVox | OFL 1.1 | YOzRS_.ttf YOzBS_i.ttf
blended | Yusei Magic | Tanukizamurai | OFL 1.1 | YuseiMagic-Regular.ttf
scanned | Agave | type agaric | MIT | agave-r-autohinted.ttf agave-b-autohinted.ttf
scanned | B612 | Nicolas Chauveau and others, Airbus | OFL 1.1, EPL 2.0 and EDL 1.0 | B612-Regular.otf B612-BoldItalic.otf
scanned | Century Catalogue | Raph Levien | OFL 1.0 | Century-Catalogue.ttf
scanned | Charis SIL | SIL International | OFL 1.1 | CharisSIL-Regular.ttf CharisSIL-BoldItalic.ttf
scanned | Clear Sans | Intel | Apache 2.0 | ClearSans-Regular.ttf ClearSans-Bold.ttf
scanned | Courier Prime | Quote-Unquote Apps | OFL 1.1 | Courier Prime.otf Courier Prime Bold.otf
scanned | Essays 1743 | John Stracke | OFL 1.1 or LGPL 2.1 | Essays1743.ttf
scanned | Fantasque Sans Mono | Jany Belluz | OFL 1.1 | FantasqueSansMono-Regular.ttf FantasqueSansMono-BoldItalic.ttf
scanned | GNUTypewriter | Lukasz Komsta | OFL 1.1 | GNUTypewriter.ttf
scanned | Go | Bigelow and Holmes | BSD 3-clause | Go-Regular.ttf Go-Mono-Bold.ttf Go-Italic.ttf
scanned | Inconsolata | Raph Levien | OFL 1.0 | Inconsolata.otf
scanned | JetBrains Mono | JetBrains | Apache 2.0 | JetBrainsMono-Regular.ttf JetBrainsMono-ExtraBold.ttf
scanned | League Mono | Tyler Finck | OFL 1.1 | LeagueMono-Regular.otf LeagueMono-NarrowBold.otf
scanned | monofur | Tobias B. Köhler | OFL 1.1 | monof55.ttf monof56.ttf
scanned | mononoki | Matthias Tellen | OFL 1.1 | mononoki-Regular.ttf mononoki-Bold.ttf
scanned | OCR-A | John Sauter | public domain | OCRA.ttf
scanned | OCR-B | Norbert Schwarz, Matthew Skala | public domain | OCRB.otf
engraved | Allerta | Matt McInerney | OFL 1.1 | allerta_medium.otf
engraved | Averia Sans | Dan Sayers | OFL 1.1 | AveriaSansGWF-Regular.ttf AveriaSansGWF-BoldItalic.ttf
engraved | Averia Serif | Dan Sayers | OFL 1.1 | AveriaSerifGWF-Regular.ttf AveriaSerifGWF-Bold.ttf
engraved | Cabin | Pablo Impallari | OFL 1.1 | Cabin-Regular.otf Cabin-Bold.otf Cabin-Italic.otf
engraved | Cantarell | Dave Crossland and others | OFL 1.1 | Cantarell-Regular.otf Cantarell-ExtraBold.otf
engraved | Caslon | George Williams | OFL 1.1 or BSD 3-clause | CaslonBold.ttf Caslon-Black.ttf
engraved | Dosis | Edgar Tolentino, Pablo Impallari | OFL 1.1 | Dosis-Medium.otf Dosis-Bold.otf
engraved | Elstob | Peter S. Baker | OFL 1.1 | ElstobD-Bold.otf ElstobD-Italic.otf
engraved | Junicode | Peter S. Baker | OFL 1.1 | JunicodeTwoBeta-Bold.otf JunicodeTwoBeta-BoldItalic.otf
engraved | Karla | Jonathan Pinhorn | OFL 1.1 | Karla-Regular.otf Karla-ExtraBold.otf
engraved | Okolaks | Grzegorz Luk | OFL 1.1 | okolaksRegular.ttf okolaksBoldItalic.ttf
engraved | Oxygen | Vernon Adams | OFL 1.1 | Oxygen-Sans.ttf Oxygen-Sans-Bold.ttf
engraved | Quicksand | Andrew Paglinawan | OFL 1.1 | Quicksand-Regular.ttf Quicksand-Bold.ttf
engraved | Roboto Slab | Google | Apache 2.0 | RobotoSlab-Light.otf RobotoSlab-Regular.otf RobotoSlab-Bold.otf
engraved | Triod Postnaja | Daniel Johnson | OFL 1.1 | TriodPostnaja.ttf
engraved | Tuffy | Thatcher Ulrich and others | public domain | Tuffy.ttf Tuffy_Bold.ttf
street | Bebas Neue | Ryoichi Tsunekawa | OFL 1.1 | BebasNeue-Regular.otf BebasNeue-Bold.otf
street | Gemunu Libre | Pushpananda Ekanayake, Sola Matas and others | OFL 1.1 | GemunuLibre-Regular.otf GemunuLibre-ExtraBold.otf
street | Inter | Rasmus Andersson | OFL 1.1 | Inter-Regular.otf Inter-Black.otf Inter-BoldItalic.otf
street | League Spartan | Micah Rich | OFL 1.1 | LeagueSpartan-Regular.otf LeagueSpartan-Black.otf
street | Manrope | Mikhail Sharanda | OFL 1.1 | Manrope-Medium.ttf Manrope-ExtraBold.ttf
street | Nanum Square Round | Sandoll, NAVER | OFL 1.1 | NanumSquareRoundR.ttf NanumSquareRoundB.ttf
street | National Park | Jeremy Shellhorn and others | OFL 1.1 | NationalPark-Regular.otf NationalPark-Heavy.otf
street | Open Sans | Steve Matteson, Google | Apache 2.0 | OpenSans-Semibold.ttf OpenSans-CondBold.ttf OpenSans-ExtraBold.ttf
street | OSP-DIN | Harrisson, Ludi, Antoine Begon | OFL 1.1 | OSP-DIN.ttf
street | Radis Sans | Gael Goy | OFL 1.1 | RadisSans-medium.otf
street | Roadgeek 2014 | Sammi De Guzman | MIT | RG2014C.ttf RG2014E.ttf
street | Roboto | Christian Robertson, Google | Apache 2.0 | Roboto-Regular.ttf Roboto-Black.ttf RobotoCondensed-Bold.ttf
street | Routed Gothic | Darren Embry | OFL 1.1 | routed-gothic.ttf routed-gothic-wide.ttf
street | Smiley Sans | atelierAnchor | OFL 1.1 | SmileySans-Oblique.ttf
street | Sora | Jonathan Barnbrook, Julian Moncada | OFL 1.1 | Sora-Regular.otf Sora-ExtraBold.otf
street | Yanone Kaffeesatz | Yanone | OFL 1.1 | YanoneKaffeesatz-Regular.otf YanoneKaffeesatz-Bold.otf
"""  # noqa: E501 (a table)

NOTICE = """\
# Sources of the `glyphs` benchmark

The images are made from the files in this folder by `fedshift/data/glyphs.py`. The files are derived from:

## Handwriting: `handwriting.npz`

All 1,797 images of "Optical Recognition of Handwritten Digits" that scikit-learn ships, 8x8 with 17 grey
levels, values unchanged. E. Alpaydin and C. Kaynak (1998), UCI Machine Learning Repository,
https://doi.org/10.24432/C50P49, Creative Commons Attribution 4.0
(https://creativecommons.org/licenses/by/4.0/). The benchmark enlarges and recolours them.

## Photographs: `china.png`, `flower.png`

The two sample photographs of scikit-learn, reduced to half their size, otherwise unchanged; Creative Commons
Attribution 2.0 (https://creativecommons.org/licenses/by/2.0/). The benchmark cuts patches from them.

- `china.png`: https://www.flickr.com/photos/danielbuechele/6061409035 by danielbuechele
- `flower.png`: https://www.flickr.com/photos/vultilion/6056698931 by vultilion
  (scikit-learn's own note names danielbuechele)

## Typefaces: `typefaces.npz`

Pictures of the digits 0 to 9, {cell}x{cell} pixels in sixteen grey levels, drawn with the {faces} faces
below; no font file or outline is included. Every family is used in one domain only.

| Domain | Family | Author | Licence of the font | Faces |
|---|---|---|---|---|
{rows}
"""


@dataclass(frozen=True)
class Family:
    """One typeface family, the domain that uses it, and the files of its faces."""

    domain: str
    name: str
    author: str
    licence: str
    files: tuple[str, ...]


def families() -> list[Family]:
    """The table above; file names may hold spaces, so they end at their extension."""
    rows = []
    for line in TYPEFACES.strip().splitlines():
        domain, name, author, licence, faces = (part.strip() for part in line.split("|"))
        files = faces.replace("tf ", "tf|").split("|")
        rows.append(Family(domain, name, author, licence, tuple(files)))
    return rows


def mask(font: ImageFont.FreeTypeFont, digit: str) -> NDArray[np.uint8]:
    """One digit, scaled so that its longer side is INK pixels, centred in a CELL x CELL square."""
    big = Image.new("L", (1024, 1024))
    ImageDraw.Draw(big).text((256, 256), digit, fill=255, font=font)
    box = big.getbbox()
    if box is None:
        raise SystemExit(f"the font {font.path!r} draws nothing for the digit {digit}; choose another face")
    ink = big.crop(box)
    scale = INK / max(ink.size)
    size = (max(1, round(ink.width * scale)), max(1, round(ink.height * scale)))
    cell = Image.new("L", (CELL, CELL))
    cell.paste(ink.resize(size, Image.Resampling.BOX), ((CELL - size[0]) // 2, (CELL - size[1]) // 2))
    return np.floor(np.asarray(cell) / 255 * LEVELS + 0.5).astype(np.uint8)


def typefaces(fonts: Path) -> dict[str, NDArray[np.uint8]]:
    """For each domain the masks of all its faces, [faces, 10, CELL, CELL] with values 0 to LEVELS."""
    found = {path.name: path for path in fonts.rglob("*.[ot]tf")}
    masks: dict[str, list[list[NDArray[np.uint8]]]] = {}
    for family in families():
        for file in family.files:
            if file not in found:
                raise SystemExit(f"no {file} ({family.name}) under {fonts}; install the font or name another --fonts")
            font = ImageFont.truetype(found[file], 400, layout_engine=ImageFont.Layout.BASIC)
            masks.setdefault(family.domain, []).append([mask(font, digit) for digit in "0123456789"])
    return {domain: np.array(faces) for domain, faces in masks.items()}


def check_apart(masks: dict[str, NDArray[np.uint8]]) -> None:
    """Stop when a face of one domain is nearly a face of another: families do copy each other's figures."""
    for one, two in combinations(masks, 2):
        for index, face in enumerate(masks[one].astype(np.float64)):
            gap = np.abs(masks[two] - face).mean(axis=(1, 2, 3)) / LEVELS
            if gap.min() < NEAR:
                raise SystemExit(f"face {index} of {one} is nearly face {gap.argmin()} of {two}; keep only one of them")


def notice() -> str:
    """NOTICE.md: every source with its author and licence."""
    row = "| {0.domain} | {0.name} | {0.author} | {0.licence} | {1} |"
    rows = [row.format(family, ", ".join(family.files)) for family in families()]
    faces = sum(len(family.files) for family in families())
    return NOTICE.format(cell=CELL, faces=faces, rows="\n".join(rows))


def main() -> None:
    """Write all resources."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fonts", type=Path, default=Path("/usr/share/fonts"), help="where the font files are")
    fonts: Path = parser.parse_args().fonts
    OUT.mkdir(parents=True, exist_ok=True)
    masks = typefaces(fonts)
    check_apart(masks)
    np.savez_compressed(OUT / "typefaces.npz", **masks)  # type: ignore[arg-type]
    digits = load_digits()
    np.savez_compressed(
        OUT / "handwriting.npz", images=digits.images.astype(np.uint8), labels=digits.target.astype(np.uint8)
    )
    for name in ("china", "flower"):
        photo = Image.fromarray(load_sample_image(f"{name}.jpg"))
        photo.reduce(2).save(OUT / f"{name}.png", optimize=True)
    (OUT / "NOTICE.md").write_text(notice(), encoding="utf-8")


if __name__ == "__main__":
    main()
