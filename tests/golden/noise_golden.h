/* The published test vector of Noise_XXpsk3_25519_ChaChaPoly_SHA256, from haskell-cryptography/cacophony
 * (public domain), vectors/cacophony.txt, by which snow and others check themselves, too. Hexadecimal. The
 * initiator and the responder take turns; messages after the third are of the transport phase. */
#ifndef CAIRN_GOLDEN_NOISE_GOLDEN_H
#define CAIRN_GOLDEN_NOISE_GOLDEN_H

static const char noise_prologue[] = "4a6f686e2047616c74";
static const char noise_init_static[] =
    "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1";
static const char noise_init_ephemeral[] =
    "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a";
static const char noise_resp_static[] =
    "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893";
static const char noise_resp_ephemeral[] =
    "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b";
static const char noise_handshake_hash[] =
    "a477edf6a131bbdb54707f6ea30eab6cd935d9b560f0e5fd1f053a95a99669fb";
static const char noise_psk[] = "54686973206973206d7920417573747269616e20706572737065637469766521";

static const struct {
    const char *payload, *sealed;
} noise_messages[] = {
    { "4c756477696720766f6e204d69736573",
      "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944c9f5ff0e8079630c"
      "b7e270c20bbf480821b77a384a645c71a2fd9b3db1c16a5f" },
    { "4d757272617920526f746862617264",
      "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843b123def17f71e6ae"
      "8e57e0e1dec5949c5f7415c6f33517398747d821a06dc23ad430aa1fd7381d46195c378a819fd574"
      "425462cbb2d4ca339e738a0b7001dc91423fbf55a99af0c6f1df21012ceb2f" },
    { "462e20412e20486179656b",
      "52187316111b118d4c060364f7b975dc0809b2590779aff2d63113c564f11744493384db7bf32d5a"
      "e6686df6ab06d508d2e07caaf1d6afc010b978735fc78900e71ae1d314130d042e729a" },
    { "4361726c204d656e676572", "eaedc672d4c21e0e2955758756fb98f194c4e90d5deb5b6cf30b27" },
    { "4a65616e2d426170746973746520536179",
      "522d543c5fe799d09a3d9da7ff54d0dc03c8af1dc7751d2ff708339d2290943e98" },
    { "457567656e2042f6686d20766f6e2042617765726b",
      "7d4e2c3873eef6a213b04e72f9df60a91666072d3544c5d96c34a09e2329b5030bee796741" },
};

#endif
